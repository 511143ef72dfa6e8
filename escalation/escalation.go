// Package escalation tells people about the records that ended in poison.
//
// The poison topic is its outbox: an Escalator reads it in a consumer group of
// its own, so that telling people never holds up the drain, and nothing that
// reached poison is forgotten while nobody listens.
//
// For each record there is one log line, one webhook POST where a webhook is
// configured, and one recon.dlq.escalated audit event. Line and POST are made
// at least once, outside any transaction; a receiver drops repetitions by the
// Idempotency-Key header, which is the record's id and its redrive generation.
// The event is written exactly once: it, the group's offset and the last seq of
// the input partition (in the offset's metadata) are one short transaction.
// A webhook that stays down costs a record its POST, counted and logged as an
// error after [Options].Webhook.GiveUp; it never holds up other records longer.
//
// A notice names a record and carries nothing of its value but its id and
// category: no key, no foreign header, no error message.
package escalation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	// GroupSuffix makes the escalator's consumer group of the worker's.
	GroupSuffix = ".escalation"

	restartMin = time.Second      // first wait after a session failed
	restartMax = 30 * time.Second // longest
	// A session that lived this long has shown that the cluster works: the next wait starts at restartMin again.
	restartHealthy = time.Minute

	// Fenced that often within the window, without having been slow: somebody else runs under our name.
	fencedLimit  = 3
	fencedWindow = time.Minute
)

// ErrFenced is returned by Run when another process runs with the same instance name.
var ErrFenced = errors.New("another process runs under the same instance name")

// Options configure an Escalator. Conn, Group, Poison, Audit and Source are required.
type Options struct {
	Conn     []kgo.Opt // how to reach the brokers
	Group    string    // the worker's group; the escalator's is Group + GroupSuffix
	Instance string    // a name that outlives restarts, for the transactional id; empty: a random one
	Poison   string    // topic to read
	Audit    string    // topic to write
	Source   string    // the worker's name in audit events and notices

	// ClusterID is the cluster's id, for records that have lost their identity; empty: asked from the brokers.
	ClusterID string

	Webhook WebhookOptions

	Logger     *slog.Logger     // nil: slog.Default
	Registerer Registerer       // nil: metrics are kept, not exported
	Now        func() time.Time // nil: time.Now
	Rand       func() float64   // jitter, in [0,1); nil: math/rand/v2
}

// WebhookOptions say where notices are posted.
type WebhookOptions struct {
	URL     string        // absolute http(s) URL; empty: log lines only
	Token   string        // bearer token; empty: none. Never logged
	Timeout time.Duration // of one request; 0: 10 s
	GiveUp  time.Duration // from a record's first try to its last; 0: 2 min
	Client  *http.Client  // for tests; nil: a client of its own. Redirects are never followed
}

// Escalator reads the poison topic and tells people. Make one with New.
type Escalator struct {
	o       Options
	txnID   string
	webhook *webhook // nil without a URL
	metrics *metrics

	// done remembers, between sessions, records that people were told of but
	// whose event is not yet committed, so that a broker's outage does not tell
	// them again. Guarded by the session's mu.
	done map[place]bool

	fenced  []time.Time   // when we were fenced without being slow; owned by Run
	restart time.Duration // restartMin, but in tests
}

// place is a record's position in the poison topic.
type place struct {
	topicID   [16]byte
	partition int32
	offset    int64
}

// New checks the options and returns an Escalator. It talks to nobody.
func New(o Options) (*Escalator, error) {
	var errs []error
	for _, f := range []struct{ name, value string }{
		{"group", o.Group}, {"poison", o.Poison}, {"audit", o.Audit}, {"source", o.Source},
	} {
		if f.value == "" {
			errs = append(errs, fmt.Errorf("escalation: %s is empty", f.name))
		}
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Rand == nil {
		o.Rand = rand.Float64
	}
	e := &Escalator{o: o, done: make(map[place]bool), restart: restartMin}
	if o.Webhook.URL != "" {
		var err error
		if e.webhook, err = newWebhook(o.Webhook, o.Now, o.Rand); err != nil {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	name := o.Instance
	if name == "" {
		name = strconv.FormatUint(rand.Uint64(), 36)
	}
	e.txnID = o.Group + "." + name + GroupSuffix
	var err error
	if e.metrics, err = newMetrics(o.Registerer); err != nil {
		return nil, fmt.Errorf("escalation: register metrics: %w", err)
	}
	return e, nil
}

// Run escalates until ctx ends, then finishes what is in hand, for a few
// seconds at most, leaves the group and returns nil. A broker's outage is waited
// out, for ever, with back-off. The only error is ErrFenced, wrapped with the name.
func (e *Escalator) Run(ctx context.Context) error {
	if e.webhook == nil {
		e.o.Logger.Warn("no webhook is configured: poison is reported in the log only", "setting", "escalation.webhook.url")
	} else {
		defer e.webhook.close()
	}
	wait := e.restart
	for ctx.Err() == nil {
		started := e.o.Now()
		err := e.session(ctx)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		if e.impostor(err) {
			return fmt.Errorf("escalation: instance %q, transactional id %q: %w: give each worker its own kafka.instance", e.o.Instance, e.txnID, ErrFenced)
		}
		if e.o.Now().Sub(started) > restartHealthy {
			wait = e.restart
		}
		delay := wait/2 + time.Duration(e.o.Rand()*float64(wait/2))
		wait = min(2*wait, restartMax)
		e.metrics.restarts.Inc()
		e.o.Logger.Error("escalation is interrupted, starting again", "error", err, "after", delay)
		sleep(ctx, delay)
	}
	return nil
}

// slowError marks an error of a transaction that took so long that the broker
// may have ended it by its timeout: being fenced then is nobody's doing.
type slowError struct{ err error }

func (e *slowError) Error() string { return "transaction timed out: " + e.err.Error() }
func (e *slowError) Unwrap() error { return e.err }

// impostor counts fencings and says whether they mean that somebody else uses
// our transactional id. A random id has no namesake.
func (e *Escalator) impostor(err error) bool {
	var slow *slowError
	if e.o.Instance == "" || !isFenced(err) || errors.As(err, &slow) {
		return false
	}
	now := e.o.Now()
	recent := e.fenced[:0]
	for _, t := range e.fenced {
		if now.Sub(t) < fencedWindow {
			recent = append(recent, t)
		}
	}
	e.fenced = append(recent, now)
	return len(e.fenced) >= fencedLimit
}

func isFenced(err error) bool {
	return errors.Is(err, kerr.ProducerFenced) || errors.Is(err, kerr.InvalidProducerEpoch)
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
