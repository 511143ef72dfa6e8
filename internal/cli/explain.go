package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/recon-dlq/recon-dlq/config"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/internal/kafka"
	"github.com/recon-dlq/recon-dlq/policy"
	"github.com/recon-dlq/recon-dlq/remedy"
	"github.com/recon-dlq/recon-dlq/worker"
)

func newExplain(a *app) *cobra.Command {
	var answers, headers []string
	var at, topic string
	cmd := &cobra.Command{
		Use:   "explain [FILE|-|TOPIC/PARTITION/OFFSET]",
		Short: "Say which rule decides about a record and why, and what becomes of it",
		Long: `Shows the rule that matches a record and why those before it do not, its target,
the limits in force, and its timeline: each call's time and what follows, to the
final fate. Nothing is called and nothing is written.

The record is one value (JSON) from a file or stdin, or lies in a topic that the
configuration names. Nobody knows what a target will answer: --answer says what to
assume, an HTTP status or a cause, with a code behind a slash; given several times
they are the answers in order, the last one again and again. Without it every
call fails with 500. The target is taken to be up, and calls to take no time.

No field of the value is shown. Exit code 4: there is no record at that place.`,
		Example: `  recon-dlq explain -c recon-dlq.yaml discrepancy.json
  recon-dlq explain -c recon-dlq.yaml --answer timeout --answer 422/E42 recon.dlq/3/1723
  enqueue-me | recon-dlq explain -c recon-dlq.yaml -o json -`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			now := time.Now().UTC().Truncate(time.Millisecond)
			if at != "" {
				var err error
				if now, err = time.Parse(time.RFC3339Nano, at); err != nil {
					return usageError("--at: want a time such as 2026-03-01T12:00:00Z")
				}
			}
			assumed, err := parseAnswers(answers)
			if err != nil {
				return usageError("--answer: %w", err)
			}
			q := question{answers: assumed, now: now}
			place, inTopic := parsePlace(args)
			if inTopic {
				if topic != "" || len(headers) > 0 {
					return usageError("--topic and --header are for a value from a file: a record in a topic has its own")
				}
				err = a.askTopic(cmd, place, &q)
			} else {
				err = a.askValue(cmd, args, topic, headers, &q)
			}
			if err != nil {
				return err
			}
			answer := q.explain()
			if a.json() {
				return a.writeJSON(answer)
			}
			return answer.print(a.out)
		},
	}
	cmd.Flags().StringArrayVar(&answers, "answer", []string{"500"}, "answer to assume: a status or cause, as in 503, timeout or 422/E42 (repeat for one after the other)")
	cmd.Flags().StringVar(&at, "at", "", "time to explain it for, RFC 3339 (default now)")
	cmd.Flags().StringVar(&topic, "topic", "", "source topic that a value from a file would arrive in (default the first of source.topics)")
	cmd.Flags().StringArrayVar(&headers, "header", nil, "header that a value from a file would have, NAME=VALUE (repeat for more)")
	config.ClientFlags(cmd.Flags())
	return cmd
}

func parseAnswers(words []string) ([]deadletter.Outcome, error) {
	var answers []deadletter.Outcome
	for _, w := range words {
		o, err := remedy.ParseAnswer(w)
		if err != nil {
			return nil, err
		}
		answers = append(answers, o)
	}
	return answers, nil
}

// places matches topic/partition/offset; a file of such a name is meant by ./ before it.
var places = regexp.MustCompile(`^([A-Za-z0-9._-]+)/([0-9]{1,10})/([0-9]{1,18})$`)

func parsePlace(args []string) (deadletter.Place, bool) {
	if len(args) == 0 {
		return deadletter.Place{}, false
	}
	m := places.FindStringSubmatch(args[0])
	if m == nil || m[1] == "." || m[1] == ".." {
		return deadletter.Place{}, false
	}
	partition, _ := strconv.ParseInt(m[2], 10, 64)
	offset, _ := strconv.ParseInt(m[3], 10, 64)
	return deadletter.Place{Topic: m[1], Partition: int32(min(partition, math.MaxInt32)), Offset: offset}, true
}

// question is what explain was asked.
type question struct {
	cfg     config.Config
	policy  *policy.Policy
	record  deadletter.Record
	bad     error         // the record is malformed
	delay   time.Duration // of its tier
	takeUp  time.Time     // when it is looked at next
	unborn  bool          // the record is in no topic yet
	answers []deadletter.Outcome
	now     time.Time
}

// askValue asks about a value that is in no topic.
func (a *app) askValue(cmd *cobra.Command, args []string, topic string, headers []string, q *question) (err error) {
	if q.cfg, err = a.loadRules(cmd); err != nil {
		return err
	}
	if _, q.policy, err = worker.Layout(q.cfg); err != nil {
		return err
	}
	if topic == "" {
		topic = q.cfg.Source.Topics[0]
	} else if !slices.Contains(q.cfg.Source.Topics, topic) {
		return usageError("--topic: %q is not one of source.topics (%s)", topic, strings.Join(q.cfg.Source.Topics, ", "))
	}
	m := deadletter.Message{Place: deadletter.Place{Topic: topic}, Timestamp: q.now.UnixMilli()}
	for _, h := range headers {
		name, value, ok := strings.Cut(h, "=")
		if !ok || name == "" {
			return usageError("--header: want NAME=VALUE")
		}
		m.Headers = append(m.Headers, deadletter.Header{Key: name, Value: []byte(value)})
	}
	in, done, err := a.input(args)
	if err != nil {
		return err
	}
	defer done()
	if m.Value, err = io.ReadAll(io.LimitReader(in, maxBatch+1)); err != nil {
		return fmt.Errorf("read input: %w", err)
	}
	if len(m.Value) > maxBatch {
		return errors.New("read input: more than 64 MiB are no record")
	}
	if m.Value = bytes.TrimSpace(m.Value); len(m.Value) == 0 {
		return &ExitError{Code: ExitNoMatch, Err: errors.New("no record in the input")}
	}
	q.record, q.bad = deadletter.Read(m, deadletter.ReadOptions{Kind: deadletter.Source, MaxWait: q.policy.MaxWait(), Now: q.now})
	q.record.ID, q.unborn, q.takeUp = "", true, q.now // its place gives a record its id
	return nil
}

// askTopic asks about a record that lies in a topic.
func (a *app) askTopic(cmd *cobra.Command, place deadletter.Place, q *question) (err error) {
	if q.cfg, err = a.load(cmd); err != nil {
		return err
	}
	layout, p, err := worker.Layout(q.cfg)
	if err != nil {
		return err
	}
	q.policy = p
	kind, delay, ok := layout.KindOf(place.Topic)
	if !ok {
		return usageError("%s is no topic with records of this configuration: want a source, a tier (%s…), a hold topic (%s…) or %s",
			place.Topic, layout.RetryPrefix, layout.HoldPrefix, layout.Poison)
	}
	m, cluster, err := a.fetch(cmd.Context(), q.cfg, place)
	if errors.Is(err, kafka.ErrNoRecord) {
		return &ExitError{Code: ExitNoMatch, Err: err}
	}
	if err != nil {
		return err
	}
	q.delay, q.takeUp = delay, q.now
	q.record, q.bad = deadletter.Read(m, deadletter.ReadOptions{Kind: kind, Delay: delay, MaxWait: p.MaxWait(), Now: q.now, ClusterID: cluster})
	if kind == deadletter.Tier { // it is left alone until then
		if up := time.UnixMilli(min(q.record.NotBefore, m.Timestamp+delay.Milliseconds())).UTC(); up.After(q.now) {
			q.takeUp = up
		}
	}
	return nil
}

func (a *app) fetch(ctx context.Context, cfg config.Config, place deadletter.Place) (deadletter.Message, string, error) {
	cl, err := a.connect(ctx, cfg, kafka.ReadAtOpts(place)...)
	if err != nil {
		return deadletter.Message{}, "", err
	}
	defer cl.Close()
	return kafka.ReadAt(ctx, cl, place)
}

// explained is the answer of explain. It has no field of the value, no header and no message of a failure.
type explained struct {
	Record      explainedRecord  `json:"record"`
	Malformed   string           `json:"malformed,omitempty"` // why it cannot be handled; then there is no rule
	Rule        string           `json:"rule,omitempty"`
	Passed      []explainedRule  `json:"passed"` // the rules before it
	Target      *explainedTarget `json:"target,omitempty"`
	Limits      *explainedLimits `json:"limits,omitempty"`
	Steps       []explainedStep  `json:"steps"`
	Fate        explainedFate    `json:"fate"`
	Approximate bool             `json:"approximate,omitempty"` // each wait in a tier may differ by up to a second

	assumed string
}

type explainedRecord struct {
	ID            string     `json:"id,omitempty"`
	DiscrepancyID string     `json:"discrepancy_id,omitempty"`
	Category      string     `json:"category,omitempty"`
	Topic         string     `json:"topic"`
	Kind          string     `json:"kind"` // source, tier, hold, poison
	Origin        string     `json:"origin,omitempty"`
	Attempts      int        `json:"attempts"` // counted so far
	Enqueued      *time.Time `json:"enqueued,omitempty"`
	NotBefore     *time.Time `json:"not_before,omitempty"`
	ErrorClass    string     `json:"error,omitempty"`
	ErrorStatus   int        `json:"status,omitempty"`
	ErrorCode     string     `json:"code,omitempty"`
}

type explainedRule struct {
	Rule  string `json:"rule"`
	Field string `json:"field"`
	Why   string `json:"why"`
}

type explainedTarget struct {
	Name        string `json:"name"`
	Timeout     string `json:"timeout"`
	Concurrency int    `json:"concurrency"` // of the whole worker
}

type explainedLimits struct {
	Attempts  int      `json:"attempts"` // counted ones, at most
	Delays    []string `json:"delays"`
	Permanent []string `json:"permanent"`
	MaxAge    string   `json:"max_age"`
	OnBreach  string   `json:"on_breach"`
}

type explainedStep struct {
	At        time.Time  `json:"at"`
	Call      bool       `json:"call"`
	Answer    string     `json:"answer,omitempty"` // assumed
	Action    string     `json:"action"`
	Reason    string     `json:"reason"`
	Rule      string     `json:"rule"`
	Attempts  int        `json:"attempts"` // counted after it
	Tier      string     `json:"tier,omitempty"`
	NotBefore *time.Time `json:"not_before,omitempty"`
}

// explainedFate is how it ends: resolved, poison, held (its target answers for ever
// that it is down or busy) or unfinished (more steps than are shown).
type explainedFate struct {
	Fate   string     `json:"fate"`
	Reason string     `json:"reason,omitempty"`
	Rule   string     `json:"rule,omitempty"`
	At     *time.Time `json:"at,omitempty"`
}

var kindNames = map[deadletter.Kind]string{
	deadletter.Source: "source", deadletter.Tier: "tier", deadletter.Hold: "hold", deadletter.Poison: "poison",
}

// explain answers the question.
func (q *question) explain() explained {
	r := &q.record
	x := explained{
		Record: explainedRecord{
			ID: r.ID, DiscrepancyID: r.DiscrepancyID, Category: r.Category, Topic: r.Input.Topic, Kind: kindNames[r.Kind],
			Attempts: r.Attempt, Enqueued: moment(time.UnixMilli(r.Enqueued)), ErrorClass: r.ErrorClass, ErrorStatus: r.ErrorStatus, ErrorCode: r.ErrorCode,
		},
		Passed: []explainedRule{}, Steps: []explainedStep{},
	}
	if !q.unborn {
		x.Record.Origin = r.Origin
	}
	if r.NotBefore > 0 {
		x.Record.NotBefore = moment(time.UnixMilli(r.NotBefore))
	}
	if q.bad != nil {
		x.Malformed = q.bad.Error()
		x.Fate = explainedFate{Fate: "poison", Reason: deadletter.ReasonMalformed, At: moment(q.takeUp)}
		return x
	}
	e := q.policy.Explain(*r, q.answers, q.takeUp)
	x.Rule, x.Approximate = e.Rule.Name, e.Approximate && slices.ContainsFunc(e.Steps, func(s policy.Step) bool { return s.Decision.Tier > 0 })
	for _, p := range e.Passed {
		x.Passed = append(x.Passed, explainedRule(p))
	}
	for _, t := range q.cfg.Targets {
		if t.Name == e.Target {
			x.Target = &explainedTarget{Name: t.Name, Timeout: policy.FormatDelay(t.HTTP.Timeout), Concurrency: q.cfg.Limits.Concurrency}
		}
	}
	x.Limits = limitsOf(e)
	for _, s := range e.Steps {
		x.Steps = append(x.Steps, newStep(s))
	}
	x.Fate = q.fate(e)
	x.assumed = assumption(q.answers)
	return x
}

func limitsOf(e policy.Explanation) *explainedLimits {
	l := &explainedLimits{Attempts: e.Cap, Delays: []string{}, Permanent: e.Rule.Permanent, MaxAge: policy.FormatDelay(e.Rule.MaxAge), OnBreach: "poison"}
	for _, d := range e.Rule.Delays {
		l.Delays = append(l.Delays, policy.FormatDelay(d))
	}
	if l.Permanent == nil {
		l.Permanent = []string{policy.DefaultPermanent}
	}
	if e.Rule.OnBreach == policy.BreachAlert {
		l.OnBreach = "alert"
	}
	return l
}

func newStep(s policy.Step) explainedStep {
	d := s.Decision
	step := explainedStep{At: s.At, Call: s.Call, Action: d.Action.String(), Reason: d.Reason, Rule: d.Rule, Attempts: s.Attempts}
	if s.Call {
		step.Answer = answerName(s.Answer)
	}
	if d.Tier > 0 {
		step.Tier = policy.FormatDelay(d.Tier)
	}
	if !d.NotBefore.IsZero() {
		step.NotBefore = moment(d.NotBefore)
	}
	return step
}

// answerName is an answer as ParseAnswer reads it.
func answerName(o deadletter.Outcome) string {
	name := o.Cause
	switch {
	case o.Class == deadletter.Resolved:
		name = "resolved"
	case o.Status > 0 && name != "http_"+strconv.Itoa(o.Status):
		name = fmt.Sprintf("%s (%d)", name, o.Status)
	}
	if o.Code != "" {
		name += "/" + o.Code
	}
	return name
}

func assumption(answers []deadletter.Outcome) string {
	names := make([]string, len(answers))
	for i, o := range answers {
		names[i] = answerName(o)
	}
	if len(names) == 1 {
		return "every call is answered with " + names[0]
	}
	return "calls are answered with " + strings.Join(names[:len(names)-1], ", ") + ", then always " + names[len(names)-1]
}

func (q *question) fate(e policy.Explanation) explainedFate {
	if q.record.Kind == deadletter.Poison {
		return explainedFate{Fate: "poison", Reason: q.record.Reason, Rule: q.record.Rule}
	}
	last := e.Steps[len(e.Steps)-1]
	f := explainedFate{Reason: last.Decision.Reason, Rule: last.Decision.Rule, At: moment(last.At)}
	switch last.Decision.Action {
	case policy.Resolve:
		f.Fate = "resolved"
	case policy.ToPoison:
		f.Fate = "poison"
	case policy.HoldBack:
		f.Fate = "held"
	default:
		f.Fate = "unfinished"
	}
	return f
}

func moment(t time.Time) *time.Time {
	t = t.UTC()
	return &t
}

const clock = "2006-01-02T15:04:05.000Z"

// print writes the explanation for people.
func (x explained) print(w io.Writer) error {
	var b bytes.Buffer
	x.printRecord(&b)
	if x.Malformed == "" {
		x.printSteps(&b)
	}
	if _, err := w.Write(b.Bytes()); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

func (x explained) printRecord(b *bytes.Buffer) {
	tw := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	defer func() { _ = tw.Flush() }() // into memory
	r := x.Record
	row := func(name, format string, args ...any) {
		fmt.Fprintf(tw, "%s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	if r.DiscrepancyID != "" {
		row("discrepancy", "%s", r.DiscrepancyID)
	}
	if r.ID != "" {
		row("record", "%s, in %s (%s), first in %s", r.ID, r.Topic, r.Kind, r.Origin)
	} else {
		row("record", "in no topic yet, would arrive in %s", r.Topic)
	}
	if r.Category != "" {
		row("category", "%s", r.Category)
	}
	if x.Malformed != "" {
		row("fate", "poison, malformed: %s", strings.TrimPrefix(x.Malformed, "malformed "))
		return
	}
	row("enqueued", "%s", r.Enqueued.Format(clock))
	if r.ErrorClass != "" {
		row("last failure", "%s", answerName(deadletter.Outcome{Class: deadletter.Suspect, Cause: r.ErrorClass, Status: r.ErrorStatus, Code: r.ErrorCode}))
	}
	row("rule", "%s", x.Rule)
	for i, p := range x.Passed {
		name := ""
		if i == 0 {
			name = "not"
		}
		row(name, "%s: %s", p.Rule, p.Why)
	}
	if x.Target == nil {
		row("target", "none: straight to people")
		return
	}
	row("target", "%s, %s a call, with all others at most %d calls at a time", x.Target.Name, x.Target.Timeout, x.Target.Concurrency)
	row("attempts", "%d counted, at most %d", r.Attempts, x.Limits.Attempts)
	row("waits", "%s", orDash(strings.Join(x.Limits.Delays, " ")))
	row("permanent", "%s", orDash(strings.Join(x.Limits.Permanent, " ")))
	row("SLA", "%s, then %s", x.Limits.MaxAge, x.Limits.OnBreach)
}

func (x explained) printSteps(b *bytes.Buffer) {
	if len(x.Steps) > 0 {
		b.WriteByte('\n')
		if x.Target != nil {
			fmt.Fprintf(b, "If %s:\n", x.assumed)
		}
		tw := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
		fmt.Fprintln(tw, "AT\tAFTER\tANSWER\tCOUNTED\tTHEN\tRULE")
		for _, s := range x.Steps {
			then := s.Action + ", " + s.Reason
			switch {
			case s.Tier != "":
				then = fmt.Sprintf("%s in %s, %s", s.Action, s.Tier, s.Reason)
			case s.Action == policy.Resolve.String():
				then = s.Reason
			}
			fmt.Fprintf(tw, "%s\t%s\t%s\t%d\t%s\t%s\n", s.At.Format(clock), s.At.Sub(x.Steps[0].At), orDash(s.Answer), s.Attempts, then, s.Rule)
		}
		_ = tw.Flush() // a buffer takes everything
	}
	fmt.Fprintf(b, "\nfate: %s", x.Fate.Fate)
	if x.Fate.Reason != "" && x.Fate.Reason != x.Fate.Fate {
		fmt.Fprintf(b, ", %s", x.Fate.Reason)
	}
	if x.Fate.Rule != "" {
		fmt.Fprintf(b, ", by rule %s", x.Fate.Rule)
	}
	if x.Fate.At != nil {
		fmt.Fprintf(b, ", at %s", x.Fate.At.Format(clock))
	}
	b.WriteByte('\n')
	if x.Approximate {
		b.WriteString("Each wait can differ by up to a second: the record gets its id, which spreads them, when it is in Kafka.\n")
	}
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
