// Package sim runs whole workers against an in-memory broker on a virtual
// network, in virtual time, with faults drawn from a seed: a day passes in
// seconds, and a seed that fails can be run again.
package sim

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/recon-dlq/recon-dlq/config"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/policy"
	"github.com/recon-dlq/recon-dlq/remedy"
	"github.com/recon-dlq/recon-dlq/test/brokers"
	"github.com/recon-dlq/recon-dlq/test/invariants"
	"github.com/recon-dlq/recon-dlq/worker"
)

// world is one simulated deployment.
type world struct {
	t     *testing.T
	seed  uint64
	rnd   *rand.Rand
	b     *brokers.Kfake
	k     *kafka
	net   *kfake.VirtualNetwork
	names brokers.Names
	parts int32
	alo   bool
	log   *slog.Logger

	mu    sync.Mutex
	calls map[string][]invariants.Call
	sent  int
	down  time.Time // the target is down until then
	how   deadletter.Outcome
	procs []*proc
	made  int
	quiet bool // no more faults: handlers answer plainly

	refusals []*kfake.FaultHandle // what brokers were told to refuse
	forget   func()               // ends the watch over the groups' members
}

// proc is one worker process.
type proc struct {
	w      *world
	name   string
	link   *link
	skew   time.Duration
	cancel context.CancelFunc
	end    chan struct{}
	err    error

	mu   sync.Mutex
	dead bool
}

const runFor = 60 * time.Second // of faults, virtual

// newWorld starts the brokers and makes the topics. Call it inside a bubble.
func newWorld(t *testing.T, seed uint64) *world {
	t.Helper()
	// The bubble's clock starts in 2000, before which records are malformed.
	time.Sleep(time.Until(time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC))) //nolint:forbidigo // in virtual time
	w := &world{t: t, seed: seed, rnd: rand.New(rand.NewPCG(seed, 0x5eed)), calls: map[string][]invariants.Call{}, net: new(kfake.VirtualNetwork)}
	w.log = slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		w.log = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	w.alo = w.rnd.IntN(4) == 0
	w.parts = int32(1 + w.rnd.IntN(4))
	w.b = brokers.NewVirtualNodes(t, w.net, 1+2*w.rnd.IntN(2), plain)
	w.names = brokers.Topics(t, w.b, w.parts, nil, nil)
	w.k = newKafka(w)
	w.forget = watchMembers(w, w.names.Group, w.names.Group+".escalation")
	return w
}

func (w *world) chance(n int) bool { return w.rnd.IntN(n) == 0 }

func (w *world) between(lo, hi time.Duration) time.Duration {
	return lo + time.Duration(w.rnd.Int64N(int64(hi-lo)))
}

// start starts a worker process. A static one takes the place of its namesake.
func (w *world) start(instance string) *proc {
	w.made++
	p := &proc{w: w, name: instance, end: make(chan struct{}), link: &link{dial: w.net.DialContext, k: w.k, conns: map[*conn]bool{}}}
	p.link.die = p.kill
	if w.chance(2) {
		p.skew = w.between(-2*time.Second, 2*time.Second)
	}
	cfg := config.Default()
	cfg.Kafka = config.Kafka{Brokers: w.b.Addrs(), Group: w.names.Group, Instance: instance}
	cfg.Source.Topics = []string{w.names.Source}
	cfg.Topics = config.Topics{Retry: w.names.Retry, Hold: w.names.Hold, Poison: w.names.Poison, Audit: w.names.Audit, State: w.names.State, Replication: 1}
	cfg.Metrics.Listen = ""
	cfg.Targets = []config.Target{{Name: "ledger", HTTP: config.HTTP{URL: "http://ledger/", Timeout: 3 * time.Second}}}
	cfg.Rules = []policy.Rule{{Name: "default", Target: "ledger", Attempts: 4, Delays: w.names.Delays, MaxAge: 24 * time.Hour}}
	cfg.FirstStart = true
	if w.alo {
		cfg.Delivery = config.AtLeastOnce
	}
	wk, err := worker.New(worker.Options{
		Config: cfg, Handlers: map[string]remedy.Handler{"ledger": remedy.HandlerFunc(p.handle)},
		Logger: w.log.With("proc", fmt.Sprintf("%s#%d", instance, w.made)), Dialer: p.link.Dial, Client: []kgo.Opt{plain}, Now: p.now,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	go func() {
		defer close(p.end)
		if p.err = wk.Run(ctx); p.err != nil {
			w.log.Warn("a worker ended", "error", p.err)
		}
	}()
	w.procs = append(w.procs, p)
	return p
}

func (p *proc) now() time.Time { return time.Now().Add(p.skew) }

// ended reports whether the process is over, by itself or killed.
func (p *proc) ended() bool {
	select {
	case <-p.end:
		return true
	default:
	}
	return p.killed()
}

func (p *proc) killed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead
}

// kill cuts the process off for good: nothing it does is seen any more. Its
// goroutines are told to end, as the bubble needs that.
func (p *proc) kill() {
	p.mu.Lock()
	p.dead = true
	p.mu.Unlock()
	p.link.set(true)
	p.cancel()
}

// handle plays the target. What it answers depends on the record and the seed,
// so that a record that cannot succeed never does.
func (p *proc) handle(ctx context.Context, r *deadletter.Record) deadletter.Outcome {
	w := p.w
	if p.killed() {
		<-ctx.Done()
		return deadletter.Outcome{Class: deadletter.Stopped}
	}
	w.mu.Lock()
	w.calls[r.ID] = append(w.calls[r.ID], invariants.Call{At: p.now(), Attempt: r.Attempt})
	down, how, quiet := time.Now().Before(w.down), w.how, w.quiet
	kind := w.rnd.IntN(100)
	wait := w.between(time.Millisecond, 50*time.Millisecond)
	w.mu.Unlock()
	sleep(ctx, wait)
	switch {
	case strings.HasPrefix(r.DiscrepancyID, "never"):
		return deadletter.Outcome{Class: deadletter.Permanent, Cause: "http_422", Status: 422}
	case down:
		return how
	case quiet:
		return deadletter.Outcome{Class: deadletter.Resolved}
	case strings.HasPrefix(r.DiscrepancyID, "twice") && r.Attempt < 2:
		return deadletter.Outcome{Class: deadletter.Suspect, Cause: "http_500", Status: 500}
	case kind < 3:
		panic("the handler is broken: s3cr3t")
	case kind < 6:
		return deadletter.Outcome{Class: deadletter.InProgress, Cause: "in_progress"}
	case kind < 8:
		sleep(context.Background(), 20*time.Second) // ignores its deadline
		return deadletter.Outcome{Class: deadletter.Suspect, Cause: "timeout"}
	case kind < 12:
		<-ctx.Done()
		return deadletter.Outcome{Class: deadletter.Suspect, Cause: "timeout"}
	case kind < 14:
		return deadletter.Outcome{Class: deadletter.Busy, Cause: "busy", RetryAfter: wait * 20}
	case kind < 17:
		return deadletter.Outcome{Class: deadletter.Unavailable, Cause: "refused"}
	case kind < 25:
		return deadletter.Outcome{Class: deadletter.Suspect, Cause: "http_500", Status: 500}
	}
	return deadletter.Outcome{Class: deadletter.Resolved}
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// produce sends records from every corner of the codec, for half of the time of faults.
func (w *world) produce(done chan<- struct{}) {
	defer close(done)
	rnd := rand.New(rand.NewPCG(w.seed, 0xda7a)) // of its own: it runs beside the faults
	cl := brokers.Client(w.t, w.b.Opts()...)
	for i := range 20 {
		var rs []*kgo.Record
		for j := range 1 + rnd.IntN(40) {
			rs = append(rs, w.record(rnd, fmt.Sprintf("%d-%d", i, j)))
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		for _, r := range cl.ProduceSync(ctx, rs...) {
			if r.Err == nil {
				w.mu.Lock()
				w.sent++
				w.mu.Unlock()
			}
		}
		cancel()
		sleep(context.Background(), time.Duration(rnd.Int64N(int64(3*time.Second))))
	}
}

func (w *world) record(rnd *rand.Rand, id string) *kgo.Record {
	r := &kgo.Record{Topic: w.names.Source, Key: []byte("k" + id)}
	if rnd.IntN(5) == 0 {
		r.Key = nil
	}
	for range rnd.IntN(3) {
		v := []byte{0, 255, byte(rnd.IntN(256))}
		if rnd.IntN(3) == 0 {
			v = nil
		}
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: []string{"x", "traceparent", "recon-attempt", "recon-id"}[rnd.IntN(4)], Value: v})
	}
	kind := []string{"plain", "plain", "plain", "twice", "twice", "never"}[rnd.IntN(6)]
	r.Value = fmt.Appendf(nil, `{"discrepancy_id":"%s-%s","category":"c%d","context":{"secret":"s3cr3t"},"enqueued_ms":%d}`,
		kind, id, rnd.IntN(3), time.Now().Add(-time.Duration(rnd.Int64N(int64(time.Hour)))).UnixMilli())
	switch rnd.IntN(25) {
	case 0:
		r.Value = r.Value[:len(r.Value)/2]
	case 1:
		r.Value = nil
	case 2:
		r.Value = []byte{}
	case 3:
		r.Value = []byte(strings.Replace(string(r.Value), `"category"`, `"attempts":2,"max_attempts":3,"category"`, 1))
	}
	return r
}

// faults draws faults for as long as they last.
func (w *world) faults() {
	static := w.chance(2)
	instance := func(i int) string {
		if static {
			return fmt.Sprintf("w%d", i)
		}
		return ""
	}
	n := 1 + w.rnd.IntN(3)
	for i := range n {
		w.start(instance(i))
	}
	end := time.Now().Add(runFor)
	for time.Now().Before(end) {
		sleep(context.Background(), w.between(50*time.Millisecond, 5*time.Second))
		w.mu.Lock()
		dice := w.rnd.IntN(17)
		w.mu.Unlock()
		p := w.any()
		switch dice {
		case 0, 1: // killed, and started again
			if p != nil {
				p.kill()
				sleep(context.Background(), w.between(0, 4*time.Second))
				w.start(p.name)
			}
		case 2: // terminated, and started again
			if p != nil {
				p.cancel()
				<-p.end
				if p.err != nil && !p.killed() {
					w.t.Errorf("a terminated worker ended with: %v", p.err)
				}
				w.start(p.name)
			}
		case 3: // one more, or one less
			if len(w.live()) < 4 {
				w.start(instance(w.made + 10))
			} else if p != nil {
				p.cancel()
			}
		case 4: // cut off, maybe past its session: a zombie
			if p != nil {
				p.link.set(true)
				sleep(context.Background(), w.between(100*time.Millisecond, 30*time.Second))
				p.link.set(false)
			}
		case 5:
			if p != nil {
				p.link.reset()
			}
		case 6, 7: // a request or an answer is lost, or late
			if p != nil {
				x := loss{key: int16(w.key()), answer: w.chance(2)}
				if w.chance(3) {
					x.delay = w.between(10*time.Millisecond, 8*time.Second)
				}
				p.link.lose(x)
			}
		case 8, 9: // a broker refuses
			w.refuse()
		case 10: // the target is down
			w.mu.Lock()
			w.down = time.Now().Add(w.between(time.Second, 15*time.Second))
			w.how = []deadletter.Outcome{
				{Class: deadletter.Unavailable, Cause: "refused"},
				{Class: deadletter.Suspect, Cause: "http_503", Status: 503},
				{Class: deadletter.Suspect, Cause: "http_401", Status: 401, PermanentIfCounted: true},
			}[w.rnd.IntN(3)]
			w.mu.Unlock()
		case 11:
			w.b.Cluster.ShufflePartitionLeaders()
		case 12:
			w.b.Cluster.RehashCoordinators()
		case 13: // somebody's transaction in the source, aborted or left open for a while
			go w.foreign(w.between(10*time.Millisecond, 8*time.Second))
		case 14: // the end of a transaction gets no answer for so long that the client gives up: was it done?
			if p != nil {
				p.link.lose(loss{key: int16(kmsg.EndTxn), answer: w.chance(2), lasts: 10 * time.Second})
			}
		case 15, 16: // killed at a step of its work, and started again
			if p != nil {
				p.link.lose(loss{key: int16(w.key()), answer: w.chance(2), kills: true})
				sleep(context.Background(), w.between(0, 4*time.Second))
				if p.killed() {
					w.start(p.name)
				}
			}
		}
	}
}

// live are the processes that work.
func (w *world) live() []*proc {
	return slices.DeleteFunc(slices.Clone(w.procs), (*proc).ended)
}

func (w *world) any() *proc {
	live := w.live()
	if len(live) == 0 {
		return nil
	}
	return live[w.rnd.IntN(len(live))]
}

func (w *world) key() kmsg.Key {
	return []kmsg.Key{
		kmsg.Produce, kmsg.EndTxn, kmsg.EndTxn, kmsg.TxnOffsetCommit, kmsg.TxnOffsetCommit, kmsg.AddPartitionsToTxn, kmsg.AddOffsetsToTxn, kmsg.InitProducerID,
		kmsg.OffsetFetch, kmsg.OffsetCommit, kmsg.Heartbeat, kmsg.JoinGroup, kmsg.SyncGroup, kmsg.Fetch, kmsg.Metadata, kmsg.ListOffsets, kmsg.FindCoordinator,
	}[w.rnd.IntN(17)]
}

// refuse lets the brokers answer some requests with an error that they can answer with.
func (w *world) refuse() {
	errs := map[kmsg.Key][]*kerr.Error{
		kmsg.Produce:            {kerr.NotLeaderForPartition, kerr.NotEnoughReplicas, kerr.RequestTimedOut, kerr.NotEnoughReplicasAfterAppend},
		kmsg.EndTxn:             {kerr.NotCoordinator, kerr.CoordinatorLoadInProgress, kerr.ConcurrentTransactions, kerr.RequestTimedOut, kerr.CoordinatorNotAvailable},
		kmsg.TxnOffsetCommit:    {kerr.NotCoordinator, kerr.CoordinatorLoadInProgress, kerr.UnknownMemberID, kerr.IllegalGeneration, kerr.ConcurrentTransactions, kerr.RequestTimedOut},
		kmsg.AddPartitionsToTxn: {kerr.ConcurrentTransactions, kerr.NotCoordinator, kerr.CoordinatorLoadInProgress},
		kmsg.AddOffsetsToTxn:    {kerr.ConcurrentTransactions, kerr.NotCoordinator},
		kmsg.InitProducerID:     {kerr.ConcurrentTransactions, kerr.NotCoordinator, kerr.CoordinatorLoadInProgress},
		kmsg.OffsetFetch:        {kerr.UnstableOffsetCommit, kerr.NotCoordinator, kerr.CoordinatorLoadInProgress},
		kmsg.OffsetCommit:       {kerr.UnknownMemberID, kerr.RebalanceInProgress, kerr.NotCoordinator},
		kmsg.Heartbeat:          {kerr.UnknownMemberID, kerr.RebalanceInProgress, kerr.NotCoordinator},
		kmsg.JoinGroup:          {kerr.UnknownMemberID, kerr.NotCoordinator},
		kmsg.SyncGroup:          {kerr.RebalanceInProgress, kerr.UnknownMemberID},
		kmsg.Fetch:              {kerr.NotLeaderForPartition, kerr.UnknownTopicOrPartition, kerr.FencedLeaderEpoch},
		kmsg.ListOffsets:        {kerr.NotLeaderForPartition},
	}
	key := w.key()
	of := errs[key]
	if len(of) == 0 {
		return
	}
	f := kfake.Fault{Keys: []kmsg.Key{key}, Err: of[w.rnd.IntN(len(of))], Count: 1 + w.rnd.IntN(3)}
	if f.Err == kerr.UnstableOffsetCommit { // it is a partition's, never the group's
		for p := range w.parts {
			f.Partitions = append(f.Partitions, p)
		}
	}
	w.refusals = append(w.refusals, w.b.Cluster.Fault(f))
	if key != kmsg.OffsetFetch { // its newer versions have no code at the top: the answer would say nothing
		f.TopLevel = true
		w.refusals = append(w.refusals, w.b.Cluster.Fault(f))
	}
}

// foreign writes into the source in a transaction that it aborts after a while.
func (w *world) foreign(open time.Duration) {
	cl, err := kgo.NewClient(append(w.b.Opts(), kgo.TransactionalID(fmt.Sprintf("foreign-%d", time.Now().UnixNano())))...)
	if err != nil {
		return
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if cl.BeginTransaction() != nil {
		return
	}
	for i := range 3 {
		cl.Produce(ctx, &kgo.Record{Topic: w.names.Source, Key: fmt.Appendf(nil, "foreign%d", i), Value: []byte("aborted")}, nil)
	}
	if cl.Flush(ctx) == nil {
		sleep(ctx, open)
	}
	_ = cl.EndTransaction(ctx, kgo.TryAbort) // or it times out
}

// How long it may take until everything is done after the last fault: nobody
// starts a worker again for it.
const (
	settleRound  = 15 * time.Second
	settleRounds = 20
)

// settle ends all faults but Apache Kafka's own ways, and waits until every
// record has its end, then counts.
func (w *world) settle() {
	for _, h := range w.refusals {
		h.Remove()
	}
	w.k.calm()
	w.mu.Lock()
	w.quiet, w.down = true, time.Time{}
	w.mu.Unlock()
	for _, p := range w.live() {
		p.link.mu.Lock()
		p.link.loss = nil
		p.link.mu.Unlock()
		p.link.set(false)
	}
	var rep invariants.Report
	var err error
	for round := range settleRounds {
		if len(w.live()) == 0 {
			w.start("")
		}
		sleep(context.Background(), settleRound)
		if rep, err = w.check(true); err == nil && (rep.Err() == nil) && rep.InFlight == 0 {
			if rep.Records != w.sent {
				w.t.Errorf("%d records arrived, %d were acknowledged to their producer", rep.Records, w.sent)
			}
			w.t.Logf("seed %d: %s (at-least-once %v, %d processes, settled after %d rounds)\nfaults: %s", w.seed, rep, w.alo, w.made, round+1, tally(w.k.came()))
			return
		}
	}
	w.t.Errorf("not settled %s after the last fault: %v %v\n%s", settleRounds*settleRound, rep, err, strings.Join(rep.Faults, "\n"))
	if g := w.b.Cluster.GroupInfo(w.names.Group); g != nil {
		w.t.Logf("group %s, generation %d", g.State, g.Epoch)
		for _, m := range g.Members {
			w.t.Logf("member %s: %v", m.MemberID, m.Assignment)
		}
	}
	if len(rep.Faults) > 0 {
		w.tell(rep.Faults[0])
	}
}

// tell logs the life of the record that a fault is about, as the trail has it.
func (w *world) tell(fault string) {
	id := regexp.MustCompile(`[0-9a-f]{32}`).FindString(fault)
	events, err := brokers.ReadAll(context.Background(), w.b, w.names.Audit)
	if id == "" || err != nil {
		return
	}
	for _, e := range events {
		if string(e.Key) == id {
			w.t.Logf("%s/%d/%d at %s by producer %d/%d: %s", e.Topic, e.Partition, e.Offset, e.Timestamp.UTC().Format(time.RFC3339Nano), e.ProducerID, e.ProducerEpoch, e.Value)
		}
	}
}

func (w *world) check(settled bool) (invariants.Report, error) {
	w.mu.Lock()
	calls := make(map[string][]invariants.Call, len(w.calls))
	for id, cs := range w.calls {
		calls[id] = slices.Clone(cs)
	}
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	return invariants.Check(ctx, w.b.Opts(), invariants.Spec{
		Sources: []string{w.names.Source}, RetryPrefix: w.names.Retry, HoldPrefix: w.names.Hold, Poison: w.names.Poison, Audit: w.names.Audit,
		Group: w.names.Group, Settled: settled, Escalated: settled, AtLeastOnce: w.alo, HandlerCalls: calls, Secrets: []string{"s3cr3t"},
	})
}

// stop ends all processes, the killed ones too.
func (w *world) stop() {
	for _, p := range w.procs {
		p.cancel()
	}
	for _, p := range w.procs {
		<-p.end
	}
	// Clients that were closed while they joined end when that times out; the
	// clock stands still once the bubble's first goroutine is over.
	sleep(context.Background(), 3*time.Minute)
	w.forget()
}

var _ net.Conn = (*conn)(nil)
