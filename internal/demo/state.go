package demo

import (
	"fmt"
	"slices"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/recon-dlq/recon-dlq/policy"
)

const (
	sampleEvery = 200 * time.Millisecond
	rateEvery   = 400 * time.Millisecond
	// keepRates is how many rates are kept, more than a view is wide.
	keepRates = 400
)

// State is a demo at one moment, for views.
type State struct {
	Elapsed  time.Duration
	Total    int // records of the script
	Sent     int
	Resolved int
	Poison   int
	Retried  int // copies sent to tiers
	Depth    int // unresolved, poison not included

	Held, Waiting, Due int // records in memory, by state; due includes those in a call
	HeldPeak           int
	OldestDue          time.Duration
	OldestWaiting      time.Duration
	OldestHeld         time.Duration

	Queues []Queue // the source and the tiers by delay

	Calls      int // of the target that ended
	Failed     int // answered with a failure that may pass
	NotCounted int // that found the target down

	Joined    bool // the worker has its partitions
	TargetUp  bool
	BackIn    time.Duration // not TargetUp: until it comes back
	Breaker   string        // closed, open, …
	Told      int           // poison records that people were told of
	Back      bool          // the target is back from an outage, and no probe has found that out
	Rates     []float64     // records that found their end, a second, by rateEvery; the latest last
	Settled   bool          // every record has its end, and was counted
	MetricsAt string        // host:port
	Config    string        // file that commands can use while the demo runs
}

// Queue is a topic with unresolved records.
type Queue struct {
	Name  string // without the prefix that all have
	Depth int
}

// settled says whether nothing is on its way any more, by what the worker says.
func (s State) settled() bool {
	return s.Sent == s.Total && s.Resolved+s.Poison >= s.Total && s.Depth == 0 && s.Told >= s.Poison
}

// now says in a sentence what is happening.
func (s State) now() string {
	switch {
	case s.Settled && s.Depth > 0:
		return "All of the demo is settled; more has arrived, and is taken to the target."
	case s.Settled:
		return "All is settled, and every record was counted."
	case !s.Joined:
		return "The worker joins its group; the first records wait for it."
	case !s.TargetUp:
		return fmt.Sprintf("The target is down for %.0f s more: records are held, no attempt is counted.", s.BackIn.Seconds())
	case s.Back:
		return "The target is back: the next probe finds out, then what was held goes on."
	case s.Breaker != policy.BreakerClosed.String():
		return "Too many failed in a row: the target is thought down until a probe succeeds."
	case s.Sent < s.Total:
		return "Discrepancies arrive, and each is taken to the target."
	case s.Depth > 0 && s.Waiting == s.Depth:
		return "The last retries wait in their tiers until they are due."
	case s.Depth > 0:
		return "All have arrived; what is left is taken to the target."
	default:
		return "Settled: every record's end is now counted over all topics."
	}
}

// sampler makes States. It belongs to one goroutine.
type sampler struct {
	d     *demo
	last  State
	at    time.Time // up to here there are rates
	ended int       // records that had found their end then
}

func newSampler(d *demo) *sampler { return &sampler{d: d, at: d.start} }

// sample takes the state at now. What the worker does comes from its metrics
// and its snapshot, as for any other reader of them.
func (p *sampler) sample(now time.Time) (State, error) {
	d := p.d
	families, err := d.worker.Gatherer().Gather()
	if err != nil {
		return State{}, fmt.Errorf("read the worker's metrics: %w", err)
	}
	m := make(metrics, len(families))
	for _, f := range families {
		m[f.GetName()] = f
	}
	s := State{
		Elapsed:    now.Sub(d.start),
		Total:      len(d.script.Records),
		Resolved:   m.sum("resolved_total"),
		Poison:     m.sum("poison_total"),
		Retried:    m.sum("recon_dlq_retries_total"),
		Calls:      m.sum("recon_dlq_attempts_total"),
		Failed:     m.sum("recon_dlq_attempts_total", "suspect"),
		NotCounted: m.sum("recon_dlq_attempts_total", "unavailable"),
		Told:       m.sum("recon_dlq_escalations_total", "logged"),
		HeldPeak:   p.last.HeldPeak,
		TargetUp:   d.ledger.Outage() == "",
		Config:     d.file,
	}
	if addr := d.worker.Addr(); addr != nil {
		s.MetricsAt = addr.String()
	}
	d.mu.Lock()
	s.Sent = len(d.sent)
	if !s.TargetUp {
		s.BackIn = max(0, d.backAt.Sub(now))
	}
	d.mu.Unlock()

	snap, ok := d.worker.Snapshot()
	if ok {
		s.Joined = snap.Assigned
		s.Held, s.Waiting = snap.Inflight["held"], snap.Inflight["waiting"]
		s.Due = snap.Inflight["due"] + snap.Inflight["calling"]
		s.OldestDue, s.OldestWaiting, s.OldestHeld = snap.OldestAge["due"], snap.OldestAge["waiting"], snap.OldestAge["held"]
		s.HeldPeak = max(s.HeldPeak, s.Held)
		for _, t := range snap.Targets {
			s.Breaker = t.Breaker.String()
		}
	}
	closed := s.Breaker == policy.BreakerClosed.String()
	s.Back = s.TargetUp && !closed && (p.last.Back || !p.last.TargetUp && p.last.Total > 0)
	queue := func(topic, name string) {
		n := int(snap.Depth[topic])
		s.Depth += n
		s.Queues = append(s.Queues, Queue{Name: name, Depth: n})
	}
	for _, topic := range d.layout.Sources {
		queue(topic, topic)
	}
	for _, delay := range d.layout.Tiers {
		name := policy.FormatDelay(delay)
		queue(d.layout.RetryPrefix+name, "retry "+name)
	}
	p.rate(&s, now)
	p.last = s
	return s, nil
}

// rate appends the throughput of the time since the last one. A sample that is
// late stands for all the time it took.
func (p *sampler) rate(s *State, now time.Time) {
	s.Rates = p.last.Rates
	took := now.Sub(p.at)
	if took < rateEvery {
		return
	}
	ended := s.Resolved + s.Poison
	rate := float64(ended-p.ended) / took.Seconds()
	p.ended = ended
	// A new slice each time: the last one belongs to whoever was told of it.
	s.Rates = slices.Clone(s.Rates[max(0, len(s.Rates)-keepRates):])
	for ; took >= rateEvery; took -= rateEvery {
		s.Rates = append(s.Rates, rate)
		p.at = p.at.Add(rateEvery)
	}
}

// metrics are metric families by name.
type metrics map[string]*dto.MetricFamily

// sum adds up a counter over all its labels, or over those series that have the given label value.
func (m metrics) sum(name string, having ...string) int {
	total := 0.0
	for _, series := range m[name].GetMetric() {
		if len(having) > 0 && !hasValue(series, having[0]) {
			continue
		}
		total += series.GetCounter().GetValue()
	}
	return int(total)
}

func hasValue(series *dto.Metric, value string) bool {
	for _, l := range series.GetLabel() {
		if l.GetValue() == value {
			return true
		}
	}
	return false
}
