package escalation

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// Registerer is where metrics are registered.
type Registerer = prometheus.Registerer

// The values of recon_dlq_escalations_total's label.
const (
	resultLogged   = "logged"
	resultNotified = "notified"
	resultFailed   = "failed"
)

type metrics struct {
	escalations *prometheus.CounterVec
	requests    *prometheus.CounterVec
	restarts    prometheus.Counter
	expired     prometheus.Counter
	refused     prometheus.Gauge
	lag         *prometheus.GaugeVec
}

func newMetrics(reg Registerer) (*metrics, error) {
	m := &metrics{
		escalations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "recon_dlq_escalations_total",
			Help: "Poison records by what was done to tell people: logged (each record), notified (the webhook took it), failed (the webhook did not, after all tries).",
		}, []string{"result"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "recon_dlq_escalation_requests_total",
			Help: "Requests to the webhook: ok (any 2xx) or error.",
		}, []string{"result"}),
		restarts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "recon_dlq_escalation_restarts_total",
			Help: "How often escalation was interrupted by an error of the cluster and began again.",
		}),
		expired: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "recon_dlq_escalation_expired_total",
			Help: "Poison records that were deleted before they were escalated, at most: control records are counted, too.",
		}),
		refused: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "recon_dlq_escalation_refused_partitions",
			Help: "Partitions of the poison topic that are not escalated, because their committed progress cannot be read.",
		}),
		lag: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "recon_dlq_escalation_lag",
			Help: "Poison records that are not yet escalated, at most: in hand, plus last stable offset minus the position. Absent until counted.",
		}, []string{"topic", "partition"}),
	}
	for _, r := range []string{resultLogged, resultNotified, resultFailed} {
		m.escalations.WithLabelValues(r)
	}
	for _, r := range []string{"ok", "error"} {
		m.requests.WithLabelValues(r)
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.escalations, m.requests, m.restarts, m.expired, m.refused, m.lag} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) escalated(result string) { m.escalations.WithLabelValues(result).Inc() }

func (m *metrics) requested(ok bool) {
	if ok {
		m.requests.WithLabelValues("ok").Inc()
	} else {
		m.requests.WithLabelValues("error").Inc()
	}
}

func (m *metrics) setLag(topic string, partition int32, n int64) {
	m.lag.WithLabelValues(topic, strconv.Itoa(int(partition))).Set(float64(n))
}

func (m *metrics) dropLag(topic string, partition int32) {
	m.lag.DeleteLabelValues(topic, strconv.Itoa(int(partition)))
}
