package suite

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/consumer"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/internal/kafka"
	"github.com/recon-dlq/recon-dlq/test/brokers"
	"github.com/recon-dlq/recon-dlq/test/invariants"
)

// player is a worker on a network of its own, whose log can be read.
type player struct {
	*worker
	wire *wire
	log  *journal
}

// launch starts a worker with the product's own client options. Tweaks change its options.
func (x *bench) launch(tweaks ...func(*consumer.Options)) *player {
	x.t.Helper()
	p := &player{wire: newWire(), log: &journal{}}
	before := x.tweak
	defer func() { x.tweak = before }()
	x.tweak = func(o *consumer.Options) {
		o.Client = kafka.Conn{Brokers: x.b.Addrs(), Dialer: p.wire.dial}.Opts()
		o.Logger = slog.New(slog.NewTextHandler(p.log, nil))
		if testing.Verbose() {
			p.log.tee = x.t
		}
		if before != nil {
			before(o)
		}
		for _, tweak := range tweaks {
			tweak(o)
		}
	}
	p.worker = x.start()
	x.t.Cleanup(func() {
		if x.t.Failed() && !testing.Verbose() {
			x.t.Logf("state: %+v\nlog:\n%s", p.c.Snapshot(), p.log)
		}
		p.wire.heal() // before the worker is halted: a dead network makes that slow
	})
	return p
}

func instance(name string) func(*consumer.Options) {
	return func(o *consumer.Options) { o.Instance = name }
}

func atLeastOnce(o *consumer.Options) { o.AtLeastOnce = true }

// stopped reports whether the worker has ended.
func (w *worker) stopped() bool {
	select {
	case <-w.end:
		return true
	default:
		return false
	}
}

// done is how many records the workers have brought to their end.
func done(ps ...*player) (n int) {
	for _, p := range ps {
		n += int(p.metric("resolved_total") + p.metric("poison_total"))
	}
	return n
}

// flow waits until ok, and sends more whenever all that was sent is done: on a
// busy machine a fault may come late. It returns how many were sent in all.
func (x *bench) flow(p *player, sent int, what string, ok func() bool) int {
	x.t.Helper()
	x.eventually(what, func() bool {
		if ok() {
			return true
		}
		if done(p) == sent {
			x.sendN(50)
			sent += 50
		}
		return false
	})
	return sent
}

// journal keeps a log's text.
type journal struct {
	mu  sync.Mutex
	all bytes.Buffer
	tee *testing.T
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.tee != nil && j.tee.Context().Err() == nil {
		j.tee.Log(strings.TrimSpace(string(b)))
	}
	return j.all.Write(b)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.all.String()
}

func (j *journal) has(text string) bool {
	return strings.Contains(j.String(), text)
}

// reaches waits until each of n records has an end in the trail. The trail,
// because a worker that was killed after a commit has not counted it.
func (x *bench) reaches(n int) {
	x.t.Helper()
	x.eventually("all records have their end in the trail", func() bool {
		rep, err := x.report(false, nil)
		return err == nil && rep.Records >= n && rep.InFlight == 0
	})
}

// drained waits until no topic holds anything for the workers to do.
func (x *bench) drained(ps ...*player) {
	x.t.Helper()
	x.eventually("every depth is zero", func() bool {
		for _, p := range ps {
			if p.stopped() {
				x.t.Fatalf("a worker ended: %v", p.err)
			}
			if p.metric("dlq_depth") != 0 {
				return false
			}
		}
		return true
	})
}

// report counts the invariants; change may change what is asked.
func (x *bench) report(settled bool, change func(*invariants.Spec)) (invariants.Report, error) {
	spec := invariants.Spec{
		Sources: []string{x.names.Source}, RetryPrefix: x.names.Retry, HoldPrefix: x.names.Hold, Poison: x.names.Poison, Audit: x.names.Audit,
		Group: x.names.Group, Settled: settled, HandlerCalls: x.called(), Secrets: []string{"s3cr3t-"},
	}
	if change != nil {
		change(&spec)
	}
	return invariants.Check(x.t.Context(), brokers.AdminOpts(x.b), spec)
}

// counted is the report of a settled bench, in which no promise may be broken.
func (x *bench) counted(change func(*invariants.Spec)) invariants.Report {
	x.t.Helper()
	count := func() (invariants.Report, error) {
		rep, err := x.report(true, change)
		if err == nil {
			err = rep.Err()
		}
		return rep, err
	}
	rep, err := count()
	// At least once a record can have its end while another copy of it still waits in a tier.
	var asked invariants.Spec
	if change != nil {
		change(&asked)
	}
	for tries := 0; err != nil && asked.AtLeastOnce && tries < 10; tries++ {
		takes(x.t.Context(), time.Second)
		rep, err = count()
	}
	if err != nil {
		x.t.Fatalf("%v\n%s", err, rep)
	}
	return rep
}

// called is a copy of the calls that the handler has seen.
func (x *bench) called() map[string][]invariants.Call {
	x.mu.Lock()
	defer x.mu.Unlock()
	calls := maps.Clone(x.calls)
	for id, c := range calls {
		calls[id] = slices.Clone(c)
	}
	return calls
}

// calledTwice is how many records the handler saw more than once for the same attempt.
func (x *bench) calledTwice() (n int) {
	for _, calls := range x.called() {
		seen := map[int]bool{}
		for _, c := range calls {
			if seen[c.Attempt] {
				n++
				break
			}
			seen[c.Attempt] = true
		}
	}
	return n
}

// gate holds handlers until it is opened.
type gate struct {
	once sync.Once
	c    chan struct{}
}

func newGate() *gate  { return &gate{c: make(chan struct{})} }
func (g *gate) open() { g.once.Do(func() { close(g.c) }) }
func (g *gate) isOpen() bool {
	select {
	case <-g.c:
		return true
	default:
		return false
	}
}

// pass waits for the gate as a good handler does: not beyond its deadline.
func (g *gate) pass(ctx context.Context) bool {
	select {
	case <-g.c:
		return true
	case <-ctx.Done():
		return false
	}
}

// takes waits for d, or until ctx ends: the time that a handler needs.
func takes(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// mixed answers as a real target does: most are resolved at once, every tenth at
// the second try, one of a hundred never.
func mixed(_ context.Context, r *deadletter.Record) deadletter.Outcome {
	switch {
	case suffix(r.DiscrepancyID, "77"):
		return deadletter.Outcome{Class: deadletter.Permanent, Cause: "http_422", Status: 422}
	case suffix(r.DiscrepancyID, "3") && r.Attempt == 0:
		return failing
	}
	return resolved
}

// slow is mixed, each call taking d.
func slow(d time.Duration) func(context.Context, *deadletter.Record) deadletter.Outcome {
	return func(ctx context.Context, r *deadletter.Record) deadletter.Outcome {
		takes(ctx, d)
		return mixed(ctx, r)
	}
}

func (x *bench) admin() *kadm.Client {
	x.t.Helper()
	return kadm.NewClient(brokers.Client(x.t, brokers.AdminOpts(x.b)...))
}

// set changes the configuration of topics.
func (x *bench) set(key, val string, topics ...string) {
	x.t.Helper()
	rs, err := x.admin().AlterTopicConfigs(x.t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: key, Value: &val}}, topics...)
	if err != nil {
		x.t.Fatal(err)
	}
	for _, r := range rs {
		if r.Err != nil {
			x.t.Fatalf("set %s of %s: %v", key, r.Name, r.Err)
		}
	}
}

// each is brokers.Each with the brokers at the same time: most of what these
// tests do is to wait for the timeouts of protocols.
func each(t *testing.T, fn func(t *testing.T, b brokers.Broker)) {
	t.Helper()
	t.Parallel()
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		t.Parallel()
		fn(t, b)
	})
}

// spec asks of a worker with these options what it promises.
func spec(tweaks ...func(*consumer.Options)) func(*invariants.Spec) {
	var o consumer.Options
	for _, tweak := range tweaks {
		tweak(&o)
	}
	return func(s *invariants.Spec) { s.AtLeastOnce = o.AtLeastOnce }
}

// foreign is a transaction of another producer on the source, left open.
type foreign struct {
	x  *bench
	cl *kgo.Client
}

// leaveOpen produces n records in a transaction that is not ended.
func (x *bench) leaveOpen(n int) *foreign {
	x.t.Helper()
	cl := brokers.Client(x.t, append(brokers.AdminOpts(x.b), kgo.TransactionalID(x.names.Prefix+"-foreign"), kgo.DefaultProduceTopic(x.names.Source))...)
	if err := cl.BeginTransaction(); err != nil {
		x.t.Fatal(err)
	}
	for i := range n {
		if err := cl.ProduceSync(x.t.Context(), &kgo.Record{Value: value(fmt.Sprintf("foreign-%d", i), "")}).FirstErr(); err != nil {
			x.t.Fatal(err)
		}
	}
	return &foreign{x: x, cl: cl}
}

func (f *foreign) end(how kgo.TransactionEndTry) {
	f.x.t.Helper()
	if err := f.cl.EndTransaction(f.x.t.Context(), how); err != nil {
		f.x.t.Fatal(err)
	}
}
