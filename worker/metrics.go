package worker

import (
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// gather collects the worker's metrics and those of its present Kafka clients.
func (w *Worker) gather() ([]*dto.MetricFamily, error) {
	w.mu.Lock()
	all := prometheus.Gatherers{w.reg}
	for _, reg := range w.clients {
		all = append(all, reg)
	}
	w.mu.Unlock()
	return all.Gather()
}
