package consumer

import (
	"container/heap"
	"context"
	"slices"
	"time"

	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/policy"
	"github.com/recon-dlq/recon-dlq/remedy"
)

// target is a handler with its queue and its breaker. Guarded by Consumer.mu.
type target struct {
	Target
	handler remedy.Handler
	slots   int // calls it may have at a time
	breaker policy.Breaker
	queue   queue
	running int      // calls that hold a slot
	stuck   int      // calls past their deadline
	calls   []*entry // all that are in the handler, stuck ones included
	ask     time.Time
}

// queue holds the records that are ready for a target. What comes back from a
// tier and what is new take turns, so that neither a backlog makes retries late
// nor retries keep what is new waiting. Entries that have left it in another
// way (their partition is gone) are skipped when they come up.
type queue struct {
	fresh, again fifo
	turn         bool
}

func (q *queue) push(e *entry) {
	if e.rec.Kind == deadletter.Source {
		q.fresh.push(e)
	} else {
		q.again.push(e)
	}
}

func (q *queue) len() int { return q.fresh.len() + q.again.len() }

func (q *queue) pop() *entry {
	q.turn = !q.turn
	if q.fresh.len() == 0 || q.turn && q.again.len() > 0 {
		return q.again.pop()
	}
	return q.fresh.pop()
}

// forget removes the entries of partitions that are gone.
func (q *queue) forget() {
	for _, f := range []*fifo{&q.fresh, &q.again} {
		f.items = slices.DeleteFunc(f.items[f.head:], func(e *entry) bool { return e.p.dropped })
		f.head = 0
	}
}

// fifo is a first-in-first-out of entries.
type fifo struct {
	items []*entry
	head  int
}

func (q *fifo) push(e *entry) { q.items = append(q.items, e) }

func (q *fifo) len() int { return len(q.items) - q.head }

func (q *fifo) pop() *entry {
	e := q.items[q.head]
	q.items[q.head] = nil
	q.head++
	if q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
	} else if q.head > 1024 && q.head > len(q.items)/2 {
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	return e
}

// dueHeap orders waiting entries by when to look at them again.
type dueHeap []*entry

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].wake.Before(h[j].wake) }
func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *dueHeap) Push(x any) {
	e := x.(*entry) //nolint:forcetypeassert // only entries are pushed
	e.index = len(*h)
	*h = append(*h, e)
}
func (h *dueHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	e.index = -1
	return e
}

// wait puts e into the due heap until at.
func (c *Consumer) wait(e *entry, at time.Time) {
	e.state, e.wake = waiting, at
	e.p.waiting += e.size
	heap.Push(&c.due, e)
	c.arm(at)
}

// longestSleep is how long the timer sleeps at most: the wall clock can jump,
// and a sleep does not follow it.
const longestSleep = time.Second

// arm makes the timer fire at at, if it would not fire earlier.
func (c *Consumer) arm(at time.Time) {
	now := c.now()
	if latest := now.Add(longestSleep); at.After(latest) {
		at = latest
	}
	if !c.armed.IsZero() && !at.Before(c.armed) {
		return
	}
	c.armed = at
	c.timer.Reset(max(at.Sub(now), 0))
}

// onTimer moves what has become due into the queues.
func (c *Consumer) onTimer() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	c.armed = time.Time{}
	for len(c.due) > 0 && !c.due[0].wake.After(now) {
		e := heap.Pop(&c.due).(*entry) //nolint:forcetypeassert // only entries are pushed
		e.p.waiting -= e.size
		c.route(e, now)
		c.adjust(e.p)
	}
	c.dispatch(now)
	if len(c.due) > 0 {
		c.arm(c.due[0].wake)
	}
	for _, t := range c.order {
		if t.queue.len() > 0 && t.ask.After(now) {
			c.arm(t.ask)
		}
	}
}

// route sends a due record on: into its target's queue, or to what policy makes
// of it without a call. The target's own state matters only when a slot is free.
func (c *Consumer) route(e *entry, now time.Time) {
	if e.wake.IsZero() && e.rec.Kind == deadletter.Tier {
		if at := e.takeUp(); at.After(now) {
			c.wait(e, at)
			return
		}
	}
	d, _ := c.o.Policy.Admit(policy.Breaker{}, &e.rec, now)
	c.settle(e, d, deadletter.Outcome{}, now)
	if d.Action == policy.Call {
		if e.target == nil {
			e.target = c.targets[d.Target]
		}
		e.state = ready
		e.target.queue.push(e)
	}
}

// settle does what a decision other than Call asks for.
func (c *Consumer) settle(e *entry, d policy.Decision, o deadletter.Outcome, now time.Time) {
	switch d.Action {
	case policy.Call:
	case policy.Wait:
		c.wait(e, d.NotBefore)
	case policy.HoldBack:
		if d.Snoozed {
			e.rec.Snoozes++
		}
		c.wait(e, d.NotBefore)
	case policy.Resolve, policy.Retry, policy.Snooze, policy.Retier, policy.ToPoison:
		c.finish(e, d, o, now)
	}
}

// finish gives e its result; a lane commits it.
func (c *Consumer) finish(e *entry, d policy.Decision, o deadletter.Outcome, now time.Time) {
	e.state, e.decision, e.outcome, e.decided = done, d, o, now
	e.p.done = append(e.p.done, e)
	e.p.lane.kick()
}

// dispatch starts calls while there are free slots.
func (c *Consumer) dispatch(now time.Time) {
	for e := c.next(now); e != nil; e = c.next(now) {
		go c.work(e)
	}
}

// next prepares the next call, if there is one and a free slot for it. The
// targets take turns.
func (c *Consumer) next(now time.Time) *entry {
	if c.closing || c.running >= c.o.Concurrency {
		return nil
	}
	for range c.order {
		t := c.order[c.turn%len(c.order)]
		c.turn++
		if e := c.start(t, now); e != nil {
			return e
		}
	}
	return nil
}

// start prepares the next call of t that may begin, if any.
func (c *Consumer) start(t *target, now time.Time) *entry {
	if t.running >= t.slots || t.stuck >= maxStuck || t.ask.After(now) {
		return nil
	}
	for range t.queue.len() {
		e := t.queue.pop()
		if e.state != ready || !e.p.active() {
			continue // its partition goes or is gone
		}
		var d policy.Decision
		d, t.breaker = c.o.Policy.Admit(t.breaker, &e.rec, now)
		switch d.Action {
		case policy.Call:
			t.ask = time.Time{}
			c.begin(e, d, now)
			return e
		case policy.HoldBack:
			t.queue.push(e)
			// A probe takes a record that has not failed: ask for the others
			// too while the target may be asked at all.
			if next := t.breaker.NextProbe(); next.After(now) {
				t.ask = next
				c.arm(next)
				return nil
			}
		default:
			c.settle(e, d, deadletter.Outcome{}, now)
		}
	}
	if t.queue.len() > 0 { // every one was refused for now
		t.ask = now.Add(t.retryProbe())
		c.arm(t.ask)
	}
	return nil
}

// retryProbe is when to ask again for a target whose held records have all failed.
func (t *target) retryProbe() time.Duration {
	if t.Breaker.ProbeMin > 0 {
		return t.Breaker.ProbeMin
	}
	return time.Second
}

// begin takes a slot for the call of e.
func (c *Consumer) begin(e *entry, d policy.Decision, now time.Time) {
	t := e.target
	e.state, e.started, e.decision = calling, now, d
	e.slot = len(t.calls)
	t.calls = append(t.calls, e)
	t.running++
	c.running++
	e.p.calls++
	if at := time.UnixMilli(e.rec.NotBefore); e.rec.NotBefore > 0 {
		c.m.lateness.Observe(now.Sub(at).Seconds())
	}
}

// work makes calls, one after the other, while there are any: who has answered
// takes the next record himself.
func (c *Consumer) work(e *entry) {
	for e != nil {
		e = c.handle(e)
	}
}

// handle makes one call, and returns the next one to make. Whatever the handler
// does – answer, panic, exit its goroutine, never return – concerns this record only.
func (c *Consumer) handle(e *entry) (next *entry) {
	t := e.target
	ctx, cancel := context.WithTimeout(c.callCtx, t.Timeout)
	o := deadletter.Outcome{Class: deadletter.Suspect, Cause: "exited", Message: "the handler ended its goroutine"}
	exited := true
	defer func() {
		cancel()
		if next = c.answer(e, t, o); exited && next != nil {
			go c.work(next) // this goroutine ends
		}
	}()
	o = remedy.Call(ctx, t.handler, &e.rec)
	exited = false
	return nil // set by the deferred function
}

// answer takes a handler's outcome, and returns the next call for whoever made this one.
func (c *Consumer) answer(e *entry, t *target, o deadletter.Outcome) *entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	late := e.state == stuck
	c.leaveHandler(e, t)
	c.m.called(t.Name, o.Class, now.Sub(e.started))
	var ruling policy.Ruling
	if late && failure(o.Class) {
		// The breaker has ruled on it when it got stuck: one call, one failure.
		ruling = policy.Ruling{Outcome: o, Hold: e.hold}
	} else {
		ruling = c.observe(t, e, o, now)
	}
	switch {
	case e.p.dropped: // the record is somebody else's now
		c.m.lateResults.Inc()
		c.log.Warn("a handler's late result is thrown away: its partition has gone", "target", t.Name, "record", e.rec.ID, "origin", e.rec.Origin)
	case ruling.Hold:
		e.state = ready
		t.queue.push(e)
	default:
		c.settle(e, c.o.Policy.Decide(&e.rec, ruling.Outcome, now), ruling.Outcome, now)
	}
	if ruling.Opened {
		c.takeBack(t)
	}
	t.ask = time.Time{}
	next := c.next(now)
	c.dispatch(now)
	return next
}

func failure(class deadletter.Class) bool {
	return class == deadletter.Suspect || class == deadletter.Unavailable
}

// observe tells t's breaker of an outcome, and the log of what that changed.
func (c *Consumer) observe(t *target, e *entry, o deadletter.Outcome, now time.Time) (ruling policy.Ruling) {
	t.breaker, e.refusals, ruling = t.breaker.Observe(e.rec.ID, e.refusals, o, e.decision.Epoch, now)
	e.answers = t.breaker.Answers()
	if ruling.Opened {
		c.log.Warn("target is thought down: its records are held and not counted", "target", t.Name, "cause", o.Cause)
	}
	if ruling.Closed {
		c.log.Info("target answers again", "target", t.Name)
	}
	return ruling
}

// leaveHandler ends e's part in its target's and partition's counts.
func (c *Consumer) leaveHandler(e *entry, t *target) {
	last := t.calls[len(t.calls)-1]
	t.calls[e.slot], last.slot = last, e.slot
	t.calls[len(t.calls)-1] = nil
	t.calls = t.calls[:len(t.calls)-1]
	e.slot = -1
	if e.state == stuck {
		t.stuck--
		return
	}
	c.release(e, t)
}

// release gives up the slot that e holds.
func (c *Consumer) release(e *entry, t *target) {
	t.running--
	c.running--
	e.p.calls--
	if e.p.calls == 0 {
		c.changed.Broadcast()
	}
}

// takeBack holds the failures of a target that turned out to be down: those in a
// row that no transaction has taken yet are not counted. What failed while the
// target still answered others is a failure of its own, however late it is committed.
func (c *Consumer) takeBack(t *target) {
	for _, p := range c.parts {
		kept := p.done[:0]
		for _, e := range p.done {
			if e.target == t && e.outcome.Class == deadletter.Suspect && e.decision.Counted && e.state == done && e.answers == t.breaker.Answers() {
				e.state, e.decision, e.outcome = ready, policy.Decision{}, deadletter.Outcome{}
				t.queue.push(e)
				continue
			}
			kept = append(kept, e)
		}
		clear(p.done[len(kept):])
		p.done = kept
	}
}

// unstick replaces the slots of calls that are past their deadline: a hanging
// handler holds up its own record only. It returns in its own time or never.
func (c *Consumer) unstick(now time.Time) {
	for _, t := range c.order {
		for _, e := range t.calls {
			if e.state != calling || now.Sub(e.started) < t.Timeout+stuckGrace {
				continue
			}
			e.state = stuck
			t.stuck++
			c.release(e, t)
			c.log.Error("a handler ignores its deadline; its record stays open", "target", t.Name, "record", e.rec.ID, "origin", e.rec.Origin)
			// To the target's breaker it is a timeout, so that a probe that hangs is not waited for.
			r := c.observe(t, e, deadletter.Outcome{Class: deadletter.Suspect, Cause: "stuck"}, now)
			t.ask = time.Time{}
			if e.hold = r.Hold; r.Opened {
				c.takeBack(t)
			}
		}
	}
	c.dispatch(now)
}
