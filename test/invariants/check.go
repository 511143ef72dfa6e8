package invariants

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/recon-dlq/recon-dlq/audit"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/policy"
)

// copiesTo says to which kind of topic an effect makes a copy.
func copiesTo(t audit.Type) (kind deadletter.Kind, ok bool) {
	switch t {
	case audit.RetryScheduled, audit.Retiered:
		return deadletter.Tier, true
	case audit.Poisoned:
		return deadletter.Poison, true
	}
	return 0, false
}

func isEnd(t audit.Type) bool {
	switch t {
	case audit.Resolved, audit.Poisoned, audit.Expired:
		return true
	}
	return false
}

func isEffect(t audit.Type) bool {
	_, copies := copiesTo(t)
	return copies || isEnd(t)
}

func (w *world) check() {
	// In order, so that the same topics give the same report.
	ids := slices.SortedFunc(maps.Keys(w.lives), func(a, b id) int {
		return cmp.Or(comparePlaces(w.lives[a].origin, w.lives[b].origin), slices.Compare(a[:], b[:]))
	})
	for _, i := range ids {
		l := w.lives[i]
		w.report.Records++
		w.checkArrival(i, l)
		w.checkEvents(i, l)
		w.checkCopies(i, l)
		w.checkContents(i, l)
		w.checkCalls(i, l)
	}
	w.checkPositions()
	w.checkSeqs()
	w.checkProgress()
	w.checkEscalations()
}

func comparePlaces(a, b place) int {
	return cmp.Or(cmp.Compare(a.topic, b.topic), cmp.Compare(a.partition, b.partition), cmp.Compare(a.offset, b.offset))
}

// checkArrival: a record that can still be read on a source topic, or an effect
// of which can be read, has one enqueued event.
func (w *world) checkArrival(i id, l *life) {
	if !l.rooted || w.topics[l.origin.topic].kind != deadletter.Source {
		return // arrived in a tier: enqueued is for source topics only
	}
	started := w.committed[place{topic: l.origin.topic, partition: l.origin.partition}].done(l.origin.offset)
	onlyExpired := true
	for _, e := range l.events {
		started = started || isEffect(e.kind)
		if e.kind != audit.Enqueued {
			onlyExpired = onlyExpired && e.kind == audit.Expired
			continue
		}
		l.enqueued++
		if e.input != l.origin {
			w.report.fault(trail, "record %s is enqueued at %s, but arrived at %s", i, w.at(e.input), w.at(l.origin))
		}
	}
	switch {
	case l.enqueued > 1:
		w.doubled("record %s from %s has %d enqueued events", i, w.at(l.origin), l.enqueued)
	case l.enqueued == 0 && !l.visible && onlyExpired:
		// It was gone before it was read.
	case l.enqueued == 0 && (w.spec.Settled || started):
		w.lost("record %s from %s has no enqueued event", i, w.at(l.origin))
	}
	if !l.visible && l.origin.offset >= w.bounds.Start(w.topics[l.origin.topic].name, l.origin.partition) {
		w.report.fault(trail, "record %s is said to come from %s, where there is none", i, w.at(l.origin))
	}
}

// checkEvents follows the effects of one record: each on a position where a copy
// of this record was, each with the attempts that follow from that copy.
func (w *world) checkEvents(i id, l *life) {
	ended := false
	for _, e := range l.events {
		w.count(e)
		ended = ended || isEnd(e.kind)
		if !isEffect(e.kind) {
			continue
		}
		if !e.known {
			w.report.fault(trail, "record %s: %s reads a topic that is not checked", i, e.kind)
			continue
		}
		c := w.copies[e.input]
		if c == nil {
			if e.input.offset >= w.bounds.Start(w.topics[e.input.topic].name, e.input.partition) {
				w.report.fault(conservation, "record %s: %s reads %s, where there is no record", i, e.kind, w.at(e.input))
			} else {
				w.effectOnGone(e.input)
			}
			continue
		}
		if c.id != i {
			w.report.fault(conservation, "record %s: %s reads %s, which is a copy of record %s", i, e.kind, w.at(e.input), c.id)
			continue
		}
		c.effects++
		w.checkAttempts(i, e, c)
	}
	if !ended {
		w.report.InFlight++
	}
}

// effectOnGone counts an effect on a position whose record retention has removed.
func (w *world) effectOnGone(p place) {
	if w.gone[p]++; w.gone[p] > 1 {
		w.doubled("%s, which is gone, has %d effects", w.at(p), w.gone[p])
	}
}

func (w *world) count(e event) {
	switch e.kind {
	case audit.Resolved:
		w.report.Resolved++
	case audit.RetryScheduled:
		w.report.Retried++
	case audit.Retiered:
		if e.reason == policy.ReasonInProgress {
			w.report.Snoozed++
		} else {
			w.report.Retiered++
		}
	case audit.Poisoned:
		w.report.Poisoned++
	case audit.Expired:
		w.report.Expired++
	}
}

// checkAttempts: what an effect says it counted against what its input had.
func (w *world) checkAttempts(i id, e event, c *copied) {
	if c.malformed {
		return // what it had cannot be known
	}
	least, most := c.attempt, c.attempt
	if c.kind == deadletter.Source {
		least = 0 // policy may start below what the value says, so that there is a call
	}
	switch {
	case hadRunOut(e, c):
	case e.kind == audit.RetryScheduled, e.kind == audit.Poisoned && counts(e.reason):
		least++
		most++
	case e.kind == audit.Poisoned && e.reason != deadletter.ReasonMalformed && e.reason != deadletter.ReasonManual:
		most++ // a reason of a later version
	}
	if e.attempt < least || e.attempt > most {
		w.report.fault(attempts, "record %s: %s of %s says attempt %d, want %s", i, e.kind, w.at(e.input), e.attempt, span(least, most))
	}
}

// checkSnoozes: the copy that an effect makes carries one more snooze after "in
// progress", none after a counted attempt, and else as many as its input.
func (w *world) checkSnoozes(i id, l *life, e event) {
	c := w.copies[e.input]
	if c == nil || c.malformed {
		return
	}
	snoozes := c.snoozes
	switch {
	case e.kind == audit.RetryScheduled:
		snoozes = 0
	case e.kind != audit.Retiered:
		return
	case e.reason == policy.ReasonInProgress:
		snoozes++
	}
	fits := func(p place) bool {
		next := w.copies[p]
		return next.kind == deadletter.Tier && next.attempt == e.attempt && next.snoozes == snoozes
	}
	if !slices.ContainsFunc(l.copies, fits) {
		w.report.fault(attempts, "record %s: %s of %s has no copy with attempt %d and %d snoozes", i, e.kind, w.at(e.input), e.attempt, snoozes)
	}
}

// counts says whether a poison reason is the outcome of a call.
func counts(reason string) bool {
	switch reason {
	case deadletter.ReasonPermanent, deadletter.ReasonAttemptsExhausted, deadletter.ReasonSLABreached:
		return true
	}
	return false
}

// hadRunOut says whether a waiting copy is poisoned without a call: its attempts
// had run out already, because policy was lowered while it waited.
func hadRunOut(e event, c *copied) bool {
	return c != nil && c.kind != deadletter.Source && e.kind == audit.Poisoned && e.reason == deadletter.ReasonAttemptsExhausted && e.attempt == c.attempt
}

// made is what an effect produces, as far as it is compared with copies.
type made struct {
	kind    deadletter.Kind
	attempt int
}

// checkCopies: the effects that make copies against the copies that are there.
func (w *world) checkCopies(i id, l *life) {
	balance := make(map[made]int, len(l.copies)) // events less copies
	reasons := make(map[string]bool)
	removed := make(map[place]bool) // copies that were read and then removed by retention
	for _, e := range l.events {
		if kind, ok := copiesTo(e.kind); ok {
			balance[made{kind, e.attempt}]++
			if kind == deadletter.Poison {
				reasons[e.reason] = true
			}
		}
		if e.known && isEffect(e.kind) && e.input != l.origin && w.copies[e.input] == nil {
			removed[e.input] = true
		}
	}
	for _, p := range l.copies {
		c := w.copies[p]
		balance[made{c.kind, c.attempt}]--
		if c.kind == deadletter.Poison && len(reasons) > 0 && !reasons[c.reason] {
			w.report.fault(trail, "record %s: the poison copy at %s has the reason %q, its event does not", i, w.at(p), c.reason)
		}
	}
	gone := len(removed)
	if gone+w.strangers == 0 { // else a copy that fits can be what is gone
		for _, e := range l.events {
			w.checkSnoozes(i, l, e)
		}
	}
	for _, kind := range []deadletter.Kind{deadletter.Tier, deadletter.Hold, deadletter.Poison} {
		missing, surplus := 0, 0
		for m, n := range balance {
			if m.kind == kind {
				missing += max(n, 0)
				surplus += max(-n, 0)
			}
		}
		// One copy too few and one too many: it is there, with the wrong attempt.
		for ; missing > 0 && surplus > 0; missing, surplus = missing-1, surplus-1 {
			w.report.fault(attempts, "record %s from %s: a copy in %s says another attempt than its event%s", i, w.origin(l), kindName(kind), w.positions(l, kind))
		}
		for ; missing > 0; missing-- {
			switch {
			case gone > 0:
				gone--
			case w.strangers > 0 && kind != deadletter.Poison:
				w.strangers--
			default:
				w.lost("record %s from %s: an event says that it was copied to %s, and the copy is not there", i, w.origin(l), kindName(kind))
			}
		}
		for ; surplus > 0; surplus-- {
			w.doubled("record %s from %s: it has a copy in %s that no event tells of%s", i, w.origin(l), kindName(kind), w.positions(l, kind))
		}
	}
}

func (w *world) origin(l *life) string {
	if !l.rooted {
		return "nowhere"
	}
	return w.at(l.origin)
}

func (w *world) positions(l *life, kind deadletter.Kind) string {
	text := ":"
	for _, p := range l.copies {
		if w.copies[p].kind == kind {
			text += " " + w.at(p)
		}
	}
	return text
}

// checkContents: every copy has the bytes of the origin, or, where that is gone,
// of the first copy.
func (w *world) checkContents(i id, l *life) {
	want, size := l.contents, l.size
	for n, p := range l.copies {
		c := w.copies[p]
		if !l.visible && n == 0 {
			want, size = c.contents, c.size
		}
		if c.masked && c.kind == deadletter.Poison {
			continue
		}
		for _, part := range []struct {
			name       string
			have, want uint64
		}{{"key", c.contents.key, want.key}, {"value", c.contents.value, want.value}, {"foreign headers", c.contents.headers, want.headers}} {
			if part.have != part.want {
				w.report.fault(sameBytes, "record %s: the %s of the copy at %s differs from %s", i, part.name, w.at(p), w.origin(l))
			}
		}
		if c.size > size+deadletter.MaxOverhead {
			w.report.fault(bounded, "record %s: the copy at %s weighs %d bytes more than its original", i, w.at(p), c.size-size)
		}
	}
}

// checkCalls: no call of an attempt before the not-before of the copies that
// wait for it, and a call for each effect that is the answer to one.
func (w *world) checkCalls(i id, l *life) {
	if w.spec.HandlerCalls == nil {
		return
	}
	calls := w.spec.HandlerCalls[i.String()]
	answered := make(map[place]bool) // by input: an event that is there twice is one answer
	for _, e := range l.events {
		switch {
		case hadRunOut(e, w.copies[e.input]):
		case e.kind == audit.Resolved, e.kind == audit.RetryScheduled, e.kind == audit.Poisoned && counts(e.reason),
			e.kind == audit.Retiered && e.reason == policy.ReasonInProgress:
			answered[e.input] = true
		}
	}
	if len(calls) < len(answered) {
		w.report.fault(attempts, "record %s from %s: %d effects are answers of its handler, which was called %d times", i, w.origin(l), len(answered), len(calls))
	}
	// Copies with snoozes are left out: the same attempt was called before they were made.
	due := make(map[int]int64) // by attempt, ms since epoch: the first that allows a call
	for _, p := range l.copies {
		c := w.copies[p]
		if c.kind != deadletter.Tier || c.notBefore == 0 || c.snoozes > 0 {
			continue
		}
		if first, ok := due[c.attempt]; !ok || c.notBefore < first {
			due[c.attempt] = c.notBefore
		}
	}
	for attempt, ms := range due {
		at := time.UnixMilli(ms)
		first := time.Time{}
		for _, call := range calls {
			if call.Attempt != attempt {
				continue
			}
			if call.At.Before(at) {
				w.report.Early++
				w.report.fault(neverEarly, "record %s from %s: called for attempt %d %s before its not-before", i, w.origin(l), attempt+1, at.Sub(call.At))
			}
			if first.IsZero() || call.At.Before(first) {
				first = call.At
			}
		}
		if !first.IsZero() {
			w.report.Lateness = max(w.report.Lateness, first.Sub(at))
		}
	}
}

// checkPositions: every position of an input topic has its one effect.
func (w *world) checkPositions() {
	for _, p := range slices.SortedFunc(maps.Keys(w.copies), comparePlaces) {
		c := w.copies[p]
		if c.kind == deadletter.Poison {
			continue
		}
		done := w.spec.Settled || w.committed[place{topic: p.topic, partition: p.partition}].done(p.offset)
		switch {
		case c.effects == 0 && done:
			w.lost("record %s: nothing became of its copy at %s", c.id, w.at(p))
		case c.effects > 1:
			w.doubled("record %s: its copy at %s has %d effects", c.id, w.at(p), c.effects)
		}
	}
}

// checkSeqs: the events of an input partition are numbered from 1, without a gap.
func (w *world) checkSeqs() {
	for _, part := range slices.SortedFunc(maps.Keys(w.seqs), comparePlaces) {
		seqs := w.seqs[part]
		slices.Sort(seqs)
		last := int64(0)
		for _, seq := range seqs {
			name, partition := w.topics[part.topic].name, part.partition
			switch {
			case seq == last && !w.spec.AtLeastOnce:
				w.report.fault(sequence, "two events of %s/%d have the seq %d", name, partition, seq)
			case seq > last+1:
				w.report.fault(sequence, "no event of %s/%d has the seqs %s", name, partition, span(int(last+1), int(seq-1)))
			}
			last = seq
		}
	}
}

// checkProgress: what the group has committed against what is there. That what
// it calls done is done, is seen by position.
func (w *world) checkProgress() {
	if w.spec.Group == "" {
		return
	}
	last := make(map[place]int64) // the highest visible offset of each partition
	for p := range w.copies {
		part := place{topic: p.topic, partition: p.partition}
		if have, ok := last[part]; !ok || p.offset > have {
			last[part] = p.offset
		}
	}
	for t, topic := range w.topics {
		if topic.kind == deadletter.Poison {
			continue
		}
		for partition, bound := range w.bounds[topic.name] {
			part := place{topic: int32(t), partition: partition}
			c, ok := w.committed[part]
			low := c.Low
			if !ok {
				low = bound.Start
			}
			w.report.Lag += max(bound.End-low, 0)
			if low > bound.End {
				w.report.fault(ownership, "%s/%d: committed offset %d is beyond the last stable offset %d", topic.name, partition, low, bound.End)
			}
			if offset, any := last[part]; any && w.spec.Settled && offset >= low {
				w.report.fault(ownership, "%s/%d: committed offset %d leaves out the record at %d, and all should be done", topic.name, partition, low, offset)
			}
			if w.spec.Settled && len(c.Holes) > 0 {
				w.report.fault(ownership, "%s/%d: progress has holes from %d on, and all should be done", topic.name, partition, c.Holes[0].From)
			}
		}
	}
}

// checkEscalations: a poison copy is escalated once.
func (w *world) checkEscalations() {
	for _, p := range slices.SortedFunc(maps.Keys(w.copies), comparePlaces) {
		if w.copies[p].kind != deadletter.Poison {
			continue
		}
		switch n := w.escalated[p]; {
		case n > 1:
			w.doubled("record %s: its poison copy at %s is escalated %d times", w.copies[p].id, w.at(p), n)
		case n == 0 && w.spec.Escalated:
			w.lost("record %s: its poison copy at %s is not escalated", w.copies[p].id, w.at(p))
		}
	}
}
