// Package consumer is the engine: it takes every record of the source, the
// tiers and the hold topics through its handler to its effect.
//
// One group client reads all topics. Handlers run concurrently and outside any
// transaction; results finish in any order. A lane, which is one transactional
// producer, collects finished results every few tens of milliseconds and makes
// one short transaction of them: copies, audit events, and the progress of
// their partitions. What is visible is therefore exactly once, whatever dies
// when; a handler may be called again, and gets an idempotency key.
//
// One mutex guards all state. Nothing under it talks to Kafka or to a target.
//
//	poll   records -> entries; windows full -> pause                      (intake.go)
//	due    timer heap -> ready queues by target -> handler -> decision    (dispatch.go)
//	lane   results -> copies + events + progress, one transaction         (lane.go, transact.go)
//	group  assigned: read progress; revoked: drain and flush; lost: drop  (group.go)
//	watch  stuck handlers, log starts, end offsets, clock skew            (watch.go)
package consumer

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/consumer/progress"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/internal/kafka"
	"github.com/recon-dlq/recon-dlq/policy"
	"github.com/recon-dlq/recon-dlq/remedy"
)

// Target is what the engine must know of a handler.
type Target struct {
	Name    string
	Timeout time.Duration // per call; must be shorter than Options.Drain
	Breaker policy.BreakerOptions
}

// Options say what the engine works on. Fields without a default are required.
type Options struct {
	Client []kgo.Opt // how to reach the brokers, shared by all clients
	// Hooks, if set, makes the hooks of each client that is opened, by its role: group or lane.
	Hooks    func(role string) []kgo.Hook
	Group    string // also the prefix of the transactional ids
	Instance string // a name that outlives restarts: static member, stable transactional ids; empty: dynamic

	ClusterID       string
	Sources         []string
	RetryPrefix     string
	HoldPrefix      string
	Poison          string
	Audit           string
	AuditPartitions int32
	// MaxMessageBytes is max.message.bytes of the topics that are written to; a topic that is missing has Kafka's default.
	MaxMessageBytes map[string]int32
	// MetadataLimit is the broker's offset.metadata.max.bytes; 0: Kafka's default.
	MetadataLimit int

	Policy  *policy.Policy
	Mux     *remedy.Mux
	Targets []Target

	AtLeastOnce      bool
	FirstStart       bool          // go on although the group has no progress and the trail has events
	MaxInflightBytes int64         // everything held; default 64 MiB
	Concurrency      int           // handler calls at a time; default 64
	Interval         time.Duration // between transactions; default 25 ms
	Drain            time.Duration // how long running handlers are waited for when partitions go; default 25 s

	Logger     *slog.Logger
	Registerer Registerer
	Now        func() time.Time // wall clock; default time.Now
}

// Times of the group and transaction protocols, as proven in docs/adr/0001.
const (
	sessionTimeout     = 10 * time.Second
	rebalanceTimeout   = 60 * time.Second
	heartbeatInterval  = 2 * time.Second
	transactionTimeout = 10 * time.Second
	fetchMaxWait       = 250 * time.Millisecond
	fetchPartition     = 256 << 10
	flushBound         = 10 * time.Second // for the last transaction of partitions that go

	laneCount     = 2         // one makes the outputs of its partitions while the other waits for the broker
	window        = 20_000    // records held of one partition
	firstGuess    = 64 << 10  // bytes of an entry, before one has been seen
	maxBatch      = 10_000    // results in one transaction
	maxBatchBytes = 16 << 20  // outputs of one transaction
	maxMetadata   = 512 << 10 // progress of one transaction, characters
	maxStuck      = 16        // handlers past their deadline a target may have before it is held
	stuckGrace    = time.Second
	kafkaMaxBytes = 1048588 // Kafka's default max.message.bytes
)

// Consumer is one worker's engine. Make it with New, run it once with Run.
type Consumer struct {
	o       Options
	log     *slog.Logger
	m       *metrics
	name    string // who writes an event: group/instance or group/session
	session string // random: names a dynamic member's transactional ids
	tiers   map[time.Duration]string
	stop    context.CancelCauseFunc

	mu      sync.Mutex
	changed *sync.Cond // on mu: calls ended, results committed
	cl      *kgo.Client
	joined  *int                    // tells the present group client's callbacks from an abandoned one's
	regroup context.CancelCauseFunc // drops everything and joins the group anew
	present bool                    // in the group: it has assigned partitions, maybe none, and has not been forgotten since
	fences  int                     // how often it said since that another one has this worker's name
	parts   map[tp]*partition
	targets map[string]*target
	order   []*target // round robin
	turn    int
	due     dueHeap
	timer   *time.Timer
	armed   time.Time
	running int   // handler calls that hold a slot
	held    int64 // bytes of all entries
	typical int64 // bytes of an entry: up at once with a larger one, down slowly
	closing bool  // no new calls
	failed  bool  // the worker cannot go on: nothing is committed any more
	lanes   []*lane

	assignedCh chan struct{}  // closed at the first assignment, maybe an empty one
	skew       *time.Duration // broker's clock minus ours, nil: not known
	acked      acked          // the last audit events that were acknowledged

	fetchErrorAt time.Time           // when a fetch error was last logged; owned by the poll loop
	inflate      *kafka.Inflater     // of the group client; owned by the poll loop
	headers      []deadletter.Header // of the record that is parsed; owned by the poll loop

	callCtx    context.Context // of handler calls; cancelled when the drain bound has passed
	cancelCall context.CancelCauseFunc
}

// Errors that end Run.
var (
	// ErrFenced: somebody else runs under this worker's name.
	ErrFenced = errors.New("another worker runs under this name")
	// ErrNoProgress: the group's progress is gone although the trail shows that it worked before.
	ErrNoProgress = errors.New("the group has no progress")

	errStopped = errors.New("the worker stops")
	errDrained = errors.New("the drain bound has passed")
)

// New checks the options and registers the metrics. It talks to nobody.
func New(o Options) (*Consumer, error) {
	if o.Group == "" || o.Poison == "" || o.Audit == "" || o.RetryPrefix == "" || len(o.Sources) == 0 {
		return nil, errors.New("consumer: group, source, retry, poison and audit topics are required")
	}
	if o.AuditPartitions <= 0 || o.ClusterID == "" || o.Policy == nil || o.Mux == nil {
		return nil, errors.New("consumer: cluster id, audit partitions, policy and mux are required")
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	setDefault(&o.MaxInflightBytes, 64<<20)
	setDefault(&o.Concurrency, 64)
	setDefault(&o.Interval, 25*time.Millisecond)
	setDefault(&o.Drain, 25*time.Second)
	setDefault(&o.MetadataLimit, progress.DefaultLimit)

	c := &Consumer{
		o:       o,
		log:     o.Logger,
		session: randomHex(),
		parts:   map[tp]*partition{},
		targets: map[string]*target{},
		tiers:   map[time.Duration]string{},
		typical: firstGuess,

		assignedCh: make(chan struct{}),
	}
	c.changed = sync.NewCond(&c.mu)
	c.name = o.Group + "/" + c.instance()
	for _, d := range o.Policy.Tiers() {
		c.tiers[d] = o.RetryPrefix + policy.FormatDelay(d)
	}
	for _, t := range o.Targets {
		h, ok := o.Mux.Handler(t.Name)
		if !ok {
			return nil, fmt.Errorf("consumer: target %q has no handler", t.Name)
		}
		if t.Timeout <= 0 || t.Timeout >= o.Drain {
			return nil, fmt.Errorf("consumer: target %q: timeout %s must be above zero and below the drain bound %s", t.Name, t.Timeout, o.Drain)
		}
		tg := &target{Target: t, handler: h, slots: o.Concurrency, breaker: policy.NewBreaker(t.Breaker)}
		if len(o.Targets) > 1 { // one slow target leaves slots for the others
			tg.slots = max(1, o.Concurrency*3/4)
		}
		c.targets[t.Name] = tg
		c.order = append(c.order, tg)
	}
	for _, name := range o.Policy.Targets() {
		if c.targets[name] == nil {
			return nil, fmt.Errorf("consumer: a rule names target %q, which is not among the targets", name)
		}
	}
	for n := range laneCount {
		c.lanes = append(c.lanes, newLane(c, n))
	}
	c.m = newMetrics(c)
	if err := c.m.register(o.Registerer); err != nil {
		return nil, fmt.Errorf("consumer: metrics: %w", err)
	}
	return c, nil
}

func setDefault[T comparable](v *T, to T) {
	var zero T
	if *v == zero {
		*v = to
	}
}

// Name is who writes this worker's audit events.
func (c *Consumer) Name() string { return c.name }

// Assigned is closed at the first assignment of partitions, maybe an empty one.
func (c *Consumer) Assigned() <-chan struct{} { return c.assignedCh }

func (c *Consumer) isAssigned() bool {
	select {
	case <-c.assignedCh:
		return true
	default:
		return false
	}
}

// client are the options that the clients of a role begin with.
func (c *Consumer) client(role string) []kgo.Opt {
	opts := slices.Clone(c.o.Client)
	if c.o.Hooks != nil {
		opts = append(opts, kgo.WithHooks(c.o.Hooks(role)...))
	}
	return opts
}

func (c *Consumer) instance() string {
	if c.o.Instance != "" {
		return c.o.Instance
	}
	return c.session
}

// now is the wall clock, in UTC so that it prints the same everywhere.
func (c *Consumer) now() time.Time { return c.o.Now().UTC() }

// Run works until ctx ends, then drains, commits, leaves the group and returns
// nil; how long that takes is bounded by Options.Drain and a few seconds. It
// returns an error when the worker cannot go on: ErrFenced, ErrNoProgress, or
// a right that is missing.
func (c *Consumer) Run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	c.stop = stop
	// Calls outlive ctx: they are given the drain bound to end by themselves.
	c.callCtx, c.cancelCall = context.WithCancelCause(context.WithoutCancel(ctx))
	defer c.cancelCall(errDrained)

	// The lanes first: a producer id under a stable name ends a predecessor's
	// open transaction, which would hide everything behind it.
	for _, l := range c.lanes {
		if err := l.open(ctx); err != nil {
			return causeOr(ctx, err)
		}
	}
	var lanes sync.WaitGroup
	laneCtx, endLanes := context.WithCancel(context.WithoutCancel(ctx))
	for _, l := range c.lanes {
		lanes.Go(func() { l.run(laneCtx) })
	}
	c.timer = time.AfterFunc(time.Hour, c.onTimer)
	err := c.runGroup(ctx)
	c.timer.Stop()
	endLanes()
	lanes.Wait()
	return causeOr(ctx, err)
}

// causeOr returns why ctx was ended by the engine itself, else err; the end of
// the caller's context is no error.
func causeOr(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) && !errors.Is(cause, context.DeadlineExceeded) && !errors.Is(cause, errStopped) {
		return cause
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// fail ends Run with err.
func (c *Consumer) fail(err error) {
	c.mu.Lock()
	c.failed = true
	c.changed.Broadcast()
	c.mu.Unlock()
	c.log.Error("the worker cannot go on", "error", err)
	c.stop(err)
}

func randomHex() string {
	var b [8]byte
	rand.Read(b[:]) // never fails, see its documentation
	return hex.EncodeToString(b[:])
}

func randomNonce() uint64 {
	var b [8]byte
	rand.Read(b[:]) // never fails, see its documentation
	return binary.BigEndian.Uint64(b[:])
}

// nonceOf marks a random nonce with the topic that the progress is of: one of the
// same name that was made anew has another id. A commit by name, which is all that
// brokers before Kafka 4.3 know within a transaction, may come after that.
func nonceOf(random uint64, topicID [16]byte) uint64 {
	return random<<32 | uint64(crc32.ChecksumIEEE(topicID[:]))
}

// limitOf is the largest record batch a topic takes, in bytes.
func (c *Consumer) limitOf(topic string) int32 {
	if n := c.o.MaxMessageBytes[topic]; n > 0 {
		return n
	}
	return kafkaMaxBytes
}

// tp names a partition.
type tp struct {
	topic     string
	partition int32
}

// partition is what is held of an assigned partition. All fields are guarded by Consumer.mu.
type partition struct {
	tp
	topicID [16]byte
	kind    deadletter.Kind
	delay   time.Duration // of a tier
	member  string        // the group member id it was assigned to
	lane    *lane

	tr      *progress.Tracker
	refused bool // its progress cannot be read: nothing is done with it
	leaving bool // being revoked: no new calls
	dropped bool // gone: results that still come in are thrown away

	logStart   int64  // the log holds nothing below
	head, tail *entry // all entries, in order of reading
	count      int    // entries
	bytes      int64  // of entries
	waiting    int64  // bytes of those that are not due
	calls      int    // in a handler and holding a slot
	paused     bool

	unseen []*entry // their enqueued events are not written
	done   []*entry // their results are not committed
	open   bool     // part of an open or undecided transaction
	limit  int      // characters of progress the broker takes

	highWatermark, lastStable int64     // -1: not known
	unstableSince             time.Time // since when the two differ with nothing moving
}

func newPartition(k tp, member string, l *lane, limit int) *partition {
	return &partition{tp: k, member: member, lane: l, limit: limit, highWatermark: -1, lastStable: -1}
}

// active reports whether work may be begun on the partition.
func (p *partition) active() bool { return p.tr != nil && !p.refused && !p.leaving && !p.dropped }

// state is where an entry stands.
type state uint8

const (
	waiting state = iota // in the due heap
	ready                // in its target's queue
	calling              // in a handler
	stuck                // in a handler, past its deadline: its slot is replaced
	done                 // has a result that is not committed
	taken                // its result is in an open transaction
	blocked              // its copy does not fit its topic: held, and alerted on
)

// entry is one record that is held. Guarded by Consumer.mu; rec, decision and
// outcome do not change once the state is done.
type entry struct {
	p          *partition
	prev, next *entry
	rec        deadletter.Record
	offset     int64
	appended   int64 // record timestamp, ms since epoch
	size       int64
	state      state
	target     *target
	wake       time.Time // waiting: when to look again
	index      int       // in the due heap
	refusals   policy.Refusals
	started    time.Time // calling, stuck
	slot       int       // calling, stuck: index in target.calls
	hold       bool      // stuck: its failure is not to be counted
	answers    uint64    // of the target's breaker when the outcome was observed

	decision policy.Decision
	outcome  deadletter.Outcome
	decided  time.Time
	expired  bool // it is gone from the log: only that is left to tell
	suspect  bool // its copy was in a batch too large for its topic: it goes alone
}

func (p *partition) add(e *entry) {
	e.prev = p.tail
	if p.tail == nil {
		p.head = e
	} else {
		p.tail.next = e
	}
	p.tail = e
	p.count++
	p.bytes += e.size
}

func (p *partition) remove(e *entry) {
	if e.prev == nil {
		p.head = e.next
	} else {
		e.prev.next = e.next
	}
	if e.next == nil {
		p.tail = e.prev
	} else {
		e.next.prev = e.prev
	}
	e.prev, e.next = nil, nil
	p.count--
	p.bytes -= e.size
}

// share is how many bytes one of n partitions may hold when the budget is
// short. All shares, each passed by a quarter with the last poll, are half the budget.
func (c *Consumer) share() int64 {
	return max(1, c.o.MaxInflightBytes*2/5/int64(max(1, len(c.parts))))
}

// adjust pauses and resumes the fetching of p by what it holds. Half of the
// budget is for whoever has work; the other half is divided, so that a record
// of every partition always finds room.
func (c *Consumer) adjust(p *partition) {
	if p.dropped || p.refused {
		return
	}
	share, half := c.share(), c.o.MaxInflightBytes/2
	var pause bool
	if p.paused {
		pause = p.count > window/2 || p.waiting > share/2 || (p.bytes > share/2 && c.held > half/2)
	} else {
		pause = p.count >= window || p.waiting >= share || (p.bytes >= share && c.held >= half)
	}
	if pause = pause || p.expiring(); pause == p.paused {
		return
	}
	p.paused = pause
	set := map[string][]int32{p.topic: {p.partition}}
	if pause {
		c.cl.PauseFetchPartitions(set)
	} else {
		c.cl.ResumeFetchPartitions(set)
	}
}

// adjustAll is adjust for all partitions, after the budget has changed for all.
func (c *Consumer) adjustAll() {
	for _, p := range c.parts {
		c.adjust(p)
	}
}
