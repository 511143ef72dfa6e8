package worker

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/recon-dlq/recon-dlq/internal/kafka"
)

// metrics are those of the process as a whole.
type metrics struct{ refusals *prometheus.CounterVec }

func newMetrics(reg *prometheus.Registry, version string) *metrics {
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "recon_dlq_build_info", Help: "1, with the version as a label."}, []string{"version"})
	build.WithLabelValues(version).Set(1)
	m := &metrics{refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "recon_dlq_refused_connections_total",
		Help: "Connections to brokers that failed for what waiting does not mend: wrong credentials, certificates, protocol.",
	}, []string{"reason"})}
	for _, reason := range kafka.Refusals {
		m.refusals.WithLabelValues(reason)
	}
	reg.MustRegister(build, m.refusals, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) refused(reason string) { m.refusals.WithLabelValues(reason).Inc() }
