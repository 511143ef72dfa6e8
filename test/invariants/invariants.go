// Package invariants is the product's promise as one library: it reads all
// topics of a worker, read-committed, and counts. Every suite, the chaos test
// and the demo end with it, so that no test has a notion of its own of what is
// lost or done twice.
//
// The invariants have the numbers of the design: 1 conservation, 2 never early,
// 3 bytes, 4 attempts, 5 bounded, 6 ownership (progress). Seq and secrecy are
// the audit trail's own. Each fault names its invariant, the record and the position.
package invariants

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// MaxFaults bounds Report.Faults; Report.FaultCount goes on.
const MaxFaults = 50

// openTransactions bounds how long Check waits for transactions that are open
// when it starts: a killed worker's end after 10 s and the coordinator's scan of
// up to 10 s more.
const openTransactions = 40 * time.Second

// Spec says what to check.
type Spec struct {
	ClusterID   string // as the worker was given it; empty: the broker's
	Sources     []string
	RetryPrefix string // of the tiers; what follows must be a duration
	HoldPrefix  string // of the hold topics; empty: there are none
	Poison      string
	Audit       string
	Group       string // the worker's; empty: progress is not checked

	// Settled: nothing is on its way any more, so every record must have its end.
	// Otherwise what progress says is done must be done, and nothing twice.
	Settled bool
	// AtLeastOnce: duplicates are counted in the report and are no faults.
	AtLeastOnce bool
	// Escalated: the escalator has come to rest too, so every poison copy must be escalated.
	Escalated bool
	// HandlerCalls are the calls that the target saw, by recon-id; nil: not known.
	HandlerCalls map[string][]Call
	// Secrets must not occur in audit events, nor in headers of ours but recon-error.
	Secrets []string
}

// Call is one call of a handler as the target saw it.
type Call struct {
	At      time.Time
	Attempt int // as it was told: counted attempts before this call
}

// Report is what was found. Counts are of events unless they say otherwise.
type Report struct {
	Records   int `json:"records"` // lives: records that arrived
	Resolved  int `json:"resolved"`
	Retried   int `json:"retried"`  // counted ones
	Snoozed   int `json:"snoozed"`  // retiered events because of "in progress" answers
	Retiered  int `json:"retiered"` // the others
	Poisoned  int `json:"poisoned"`
	Expired   int `json:"expired"`
	Escalated int `json:"escalated"`
	InFlight  int `json:"in_flight"` // records without an end

	Lost    int `json:"lost"`    // effects and copies that must be there and are not
	Doubled int `json:"doubled"` // effects, copies and enqueued events beyond the one

	Early    int           `json:"early"`       // handler calls before a copy's not-before
	Lateness time.Duration `json:"lateness_ns"` // the longest from a copy's not-before to the next call

	Holes int64 `json:"holes"` // incomplete offsets below top, by the group's progress
	Lag   int64 `json:"lag"`   // last stable offsets minus committed offsets, markers included

	FaultCount int      `json:"fault_count"`
	Faults     []string `json:"faults,omitempty"` // the first MaxFaults

	Took time.Duration `json:"took_ns"`
}

// Err is nil if the promise was kept, else an error with the faults, one a line.
func (r Report) Err() error {
	if r.FaultCount == 0 {
		return nil
	}
	lines := strings.Join(r.Faults, "\n  ")
	return fmt.Errorf("%d invariants broken (lost %d, doubled %d, early %d):\n  %s", r.FaultCount, r.Lost, r.Doubled, r.Early, lines)
}

// String is one line of figures.
func (r Report) String() string {
	return fmt.Sprintf("records %d, resolved %d, retried %d, snoozed %d, retiered %d, poisoned %d, expired %d, escalated %d, in flight %d, lost %d, doubled %d, early %d, faults %d, lag %d, holes %d",
		r.Records, r.Resolved, r.Retried, r.Snoozed, r.Retiered, r.Poisoned, r.Expired, r.Escalated, r.InFlight, r.Lost, r.Doubled, r.Early, r.FaultCount, r.Lag, r.Holes)
}

func (r *Report) fault(invariant, format string, args ...any) {
	r.FaultCount++
	if len(r.Faults) < MaxFaults {
		r.Faults = append(r.Faults, "invariant "+invariant+": "+fmt.Sprintf(format, args...))
	}
}

// Names of the invariants in faults.
const (
	conservation = "1 conservation"
	neverEarly   = "2 never early"
	sameBytes    = "3 bytes"
	attempts     = "4 attempts"
	bounded      = "5 bounded"
	ownership    = "6 progress"
	sequence     = "seq"
	secrecy      = "secrecy"
	trail        = "trail"
)

// Check reads the topics and the group's progress and counts. Opts connect the
// client. The error says that the check could not be made; broken invariants are
// in the report. It first waits, up to 40 s, for the transactions that are open.
//
// Topics are read one after the other, so a worker that goes on writing while
// they are read can look as if a copy or an event were missing: stop it first, or
// let it come to rest.
func Check(ctx context.Context, opts []kgo.Opt, spec Spec) (Report, error) {
	start := time.Now()
	if len(spec.Sources) == 0 || spec.RetryPrefix == "" || spec.Poison == "" || spec.Audit == "" {
		return Report{}, errors.New("check invariants: spec needs sources, retry prefix, poison and audit topic")
	}
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.MetadataMinAge(100 * time.Millisecond)}, opts...)...)
	if err != nil {
		return Report{}, fmt.Errorf("check invariants: make a client: %w", err)
	}
	defer cl.Close()
	w := &world{spec: spec, now: start, copies: make(map[place]*copied), lives: make(map[id]*life)}
	if err := w.load(ctx, cl); err != nil {
		return w.report, fmt.Errorf("check invariants: %w", err)
	}
	w.check()
	w.report.Took = time.Since(start)
	return w.report, nil
}
