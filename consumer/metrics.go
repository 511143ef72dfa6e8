package consumer

import (
	"errors"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/policy"
)

// Registerer is where the metrics are registered.
type Registerer = prometheus.Registerer

// metrics are the engine's. Counters count what is committed, so that they
// agree with the trail; gauges are computed from the state when scraped.
type metrics struct {
	c *Consumer

	rewound                                       prometheus.Counter
	resolved, enqueued, lateResults, fetchErrors  prometheus.Counter
	lost, regroups, ambiguous, oversized, expired prometheus.Counter
	progressRefused, progressDeferred             prometheus.Counter
	poison, retries, attempts, repaired, txns     *prometheus.CounterVec
	produceFailures                               *prometheus.CounterVec
	handler                                       *prometheus.HistogramVec
	lateness, txnSeconds                          prometheus.Histogram
	depth, age, holes, lag, unstable, state       *prometheus.Desc
	inflight, inflightBytes, stuckNow, breakerNow *prometheus.Desc
	unstableAge, skew                             *prometheus.Desc
}

func newMetrics(c *Consumer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	native := func(name, help string) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Name: name, Help: help, NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160, NativeHistogramMinResetDuration: time.Hour}
	}
	gauge := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	m := &metrics{
		c:                c,
		resolved:         counter("resolved_total", "Records resolved, counted when that is committed."),
		poison:           counters("poison_total", "Records sent to poison, counted when that is committed.", "reason"),
		rewound:          counter("recon_dlq_rewound_partitions_total", "Partitions whose log was shorter than what was done of it, or whose progress was of a deleted topic of the same name, and that were read again from their start."),
		enqueued:         counter("recon_dlq_enqueued_total", "Records taken over from source topics, counted with their enqueued event."),
		retries:          counters("recon_dlq_retries_total", "Copies sent to a tier, by its delay.", "tier"),
		attempts:         counters("recon_dlq_attempts_total", "Handler calls that ended, by target and class of outcome.", "target", "class"),
		repaired:         counters("recon_dlq_repaired_records_total", "Records with something to repair while reading, by what.", "what"),
		txns:             counters("recon_dlq_transactions_total", "Transactions (at-least-once: commits), by result.", "result"),
		produceFailures:  counters("recon_dlq_produce_failures_total", "Records that a topic did not take: tried again, with nothing committed meanwhile.", "topic"),
		lateResults:      counter("recon_dlq_late_results_total", "Handler results of partitions that had gone: thrown away."),
		fetchErrors:      counter("recon_dlq_fetch_errors_total", "Errors while fetching."),
		lost:             counter("recon_dlq_lost_partitions_total", "Partitions lost without having been handed over."),
		regroups:         counter("recon_dlq_regroups_total", "Times everything was dropped and the group joined anew: it gave this worker another member id, or a topic was deleted."),
		ambiguous:        counter("recon_dlq_ambiguous_transactions_total", "Transactions whose end got no clear answer and was read back."),
		oversized:        counter("recon_dlq_oversized_total", "Results whose copy the broker does not take, as too large or invalid for its topic: held until the topic is mended and the worker restarted."),
		expired:          counter("recon_dlq_expired_total", "Offsets that were gone from the log before they were done, told by an expired event each: records, or markers where nothing was ever read."),
		progressRefused:  counter("recon_dlq_progress_refused_total", "Commits put off because the progress does not fit the commit metadata."),
		progressDeferred: counter("recon_dlq_progress_deferred_total", "Results put off because the progress with them does not fit the commit metadata."),
		handler:          prometheus.NewHistogramVec(native("recon_dlq_handler_duration_seconds", "Duration of handler calls."), []string{"target"}),
		lateness:         prometheus.NewHistogram(native("recon_dlq_lateness_seconds", "How long after its not-before a record was called.")),
		txnSeconds:       prometheus.NewHistogram(native("recon_dlq_transaction_duration_seconds", "Duration of transactions (at-least-once: of produce and commit).")),

		depth: gauge("dlq_depth", "Unresolved records by topic, poison not included: exact for what has been read, "+
			"last stable offset minus position (an upper bound) for what has not. Zero when everything is done.", "topic"),
		age: gauge("dlq_oldest_age_ms", "Age since enqueued of the oldest record this worker holds, by state: due (ready or in a handler), "+
			"waiting (not due), held (its target is thought down). Zero when there is none. What has not been read yet is not included.", "state"),
		holes:         gauge("recon_dlq_holes", "Incomplete offsets below the read position.", "topic", "partition"),
		lag:           gauge("recon_dlq_consumer_lag", "Last stable offset minus committed offset of source topics. One open record holds it up: alert on dlq_oldest_age_ms.", "topic", "partition"),
		unstable:      gauge("recon_dlq_unstable_records", "High watermark minus last stable offset: hidden behind an open transaction, maybe a foreign one.", "topic", "partition"),
		unstableAge:   gauge("recon_dlq_unstable_age_seconds", "For how long the last stable offset has stood still below the high watermark.", "topic", "partition"),
		state:         gauge("recon_dlq_partition_state", "1 for the state the partition is in: active, paused, loading, refused, leaving.", "topic", "partition", "state"),
		inflight:      gauge("recon_dlq_inflight", "Records held in memory, by state.", "state"),
		inflightBytes: gauge("recon_dlq_inflight_bytes", "Bytes of records held in memory; bounded by limits.max_inflight_bytes."),
		stuckNow:      gauge("recon_dlq_stuck_handlers", "Handler calls past their deadline that have not returned.", "target"),
		breakerNow:    gauge("recon_dlq_breaker_state", "1 for the state the target's breaker is in.", "target", "state"),
		skew:          gauge("recon_dlq_clock_skew_seconds", "Broker's clock minus this worker's, as the last audit event's append time tells; above 1 s not-before is unreliable."),
	}
	for _, r := range []string{deadletter.ReasonAttemptsExhausted, deadletter.ReasonPermanent, deadletter.ReasonSLABreached, deadletter.ReasonMalformed, deadletter.ReasonManual} {
		m.poison.WithLabelValues(r)
	}
	for _, topic := range append(slices.Collect(maps.Values(c.tiers)), c.o.Poison, c.o.Audit) {
		m.produceFailures.WithLabelValues(topic)
	}
	for d := range c.tiers {
		m.retries.WithLabelValues(policy.FormatDelay(d))
	}
	for _, t := range c.order {
		for class := range classNames {
			m.attempts.WithLabelValues(t.Name, classNames[class])
		}
	}
	for _, r := range []string{"committed", "aborted", "fenced"} {
		m.txns.WithLabelValues(r)
	}
	return m
}

var classNames = [...]string{
	deadletter.Resolved: "resolved", deadletter.Permanent: "permanent", deadletter.Suspect: "suspect", deadletter.Busy: "busy",
	deadletter.InProgress: "in_progress", deadletter.Unavailable: "unavailable", deadletter.Stopped: "stopped",
}

// register registers the metrics; without a registerer they are kept, not exported.
func (m *metrics) register(r Registerer) error {
	if r == nil {
		return nil
	}
	var errs []error
	for _, x := range []prometheus.Collector{
		m.rewound, m.resolved, m.poison, m.enqueued, m.retries, m.attempts, m.repaired, m.txns, m.produceFailures, m.lateResults, m.fetchErrors, m.lost, m.regroups,
		m.ambiguous, m.oversized, m.expired, m.progressRefused, m.progressDeferred, m.handler, m.lateness, m.txnSeconds, m,
	} {
		errs = append(errs, r.Register(x))
	}
	return errors.Join(errs...)
}

// called counts a handler call that ended.
func (m *metrics) called(target string, class deadletter.Class, took time.Duration) {
	name := "unknown"
	if int(class) < len(classNames) {
		name = classNames[class]
	}
	m.attempts.WithLabelValues(target, name).Inc()
	m.handler.WithLabelValues(target).Observe(took.Seconds())
}

// settled counts a committed result.
func (m *metrics) settled(e *entry) {
	if e.expired {
		m.expired.Inc()
		return
	}
	switch e.decision.Action {
	case policy.Resolve:
		m.resolved.Inc()
	case policy.ToPoison:
		m.poison.WithLabelValues(e.decision.Reason).Inc()
	case policy.Retry, policy.Snooze, policy.Retier:
		m.retries.WithLabelValues(policy.FormatDelay(e.decision.Tier)).Inc()
	case policy.Call, policy.Wait, policy.HoldBack:
	}
}

func (m *metrics) transaction(err error, took time.Duration) {
	result := "committed"
	switch {
	case fencedProducer(err):
		result = "fenced"
	case err != nil:
		result = "aborted"
	}
	m.txns.WithLabelValues(result).Inc()
	m.txnSeconds.Observe(took.Seconds())
}

// Describe is part of prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.depth, m.age, m.holes, m.lag, m.unstable, m.unstableAge, m.state, m.inflight, m.inflightBytes, m.stuckNow, m.breakerNow, m.skew} {
		ch <- d
	}
}

// Collect is part of prometheus.Collector: the gauges, computed from the state.
// What has not been counted yet is absent, not zero.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	set := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	s := m.c.Snapshot()
	for topic, n := range s.Depth {
		set(m.depth, float64(n), topic)
	}
	if s.Assigned {
		for state, age := range s.OldestAge {
			set(m.age, float64(age.Milliseconds()), state)
		}
	}
	for state, n := range s.Inflight {
		set(m.inflight, float64(n), state)
	}
	set(m.inflightBytes, float64(s.InflightBytes))
	for _, p := range s.Partitions {
		n := strconv.Itoa(int(p.Partition))
		set(m.state, 1, p.Topic, n, p.State)
		if p.State == "loading" || p.State == "refused" {
			continue
		}
		set(m.holes, float64(p.Holes), p.Topic, n)
		if p.Lag >= 0 {
			set(m.lag, float64(p.Lag), p.Topic, n)
		}
		if p.Unstable >= 0 {
			set(m.unstable, float64(p.Unstable), p.Topic, n)
			set(m.unstableAge, p.UnstableFor.Seconds(), p.Topic, n)
		}
	}
	for _, t := range s.Targets {
		set(m.stuckNow, float64(t.Stuck), t.Name)
		for _, state := range policy.BreakerStates {
			v := 0.0
			if state == t.Breaker {
				v = 1
			}
			set(m.breakerNow, v, t.Name, state.String())
		}
	}
	if s.ClockSkew != nil {
		set(m.skew, s.ClockSkew.Seconds())
	}
}
