package progress

import (
	"slices"
	"sort"
)

// Tracker follows one partition: what has been read, what of it is incomplete,
// and what the last commit said. It is not safe for concurrent use.
type Tracker struct {
	committed Progress
	next      int64   // everything below has been read
	unread    []Range // holes of the commit it started from that have not been read again

	open   []int64 // read offsets, ascending; closed ones stay until compacted
	closed []bool
	live   int // open and not closed
}

// NewTracker starts from what the partition's commit says.
func NewTracker(p Progress) *Tracker {
	return &Tracker{committed: p, next: p.Low, unread: slices.Clone(p.Holes)}
}

// Fresh is the progress of a partition nobody has worked on, from its first offset.
func Fresh(start int64) Progress { return Progress{Low: start, Top: start, Seen: start} }

// Committed is what the last successful commit said.
func (t *Tracker) Committed() Progress { return t.committed }

// Next is the offset to read next.
func (t *Tracker) Next() int64 { return t.next }

// Open is how many offsets have been read and are not complete.
func (t *Tracker) Open() int { return t.live }

// Holes is how many incomplete offsets are known: the open ones and those of
// the last commit that have not been read again.
func (t *Tracker) Holes() int64 {
	n := int64(t.live)
	for _, h := range t.unread {
		n += h.To - h.From
	}
	return n
}

// Read takes note that offset was read; offsets come in ascending order. It
// reports whether the record is to be worked on, which makes it open, or is
// done already. Offsets passed over hold no record any more (control records,
// aborted transactions, a log whose start has moved): those among them that
// were known to be incomplete are returned as gone, and are open, because
// their end still has to be told.
func (t *Tracker) Read(offset int64) (todo bool, gone []Range) {
	gone = t.Skip(offset)
	if offset < t.next {
		return false, gone // read before
	}
	t.next = offset + 1
	if offset >= t.committed.Top {
		t.push(offset)
		return true, gone
	}
	if len(t.unread) == 0 || t.unread[0].From > offset {
		return false, gone
	}
	t.takeUnread(offset + 1)
	t.push(offset)
	return true, gone
}

// Skip moves on to offset without a record; see Read for what it returns.
func (t *Tracker) Skip(offset int64) (gone []Range) {
	if offset <= t.next {
		return nil
	}
	t.next = offset
	for _, h := range t.takeUnread(offset) {
		gone = append(gone, h)
		for o := h.From; o < h.To; o++ {
			t.push(o)
		}
	}
	return gone
}

// Expire takes note that the log holds nothing below start any more, at most n
// offsets at a time: call it again until Next is start. Everything it moves over
// that is not known to be complete is returned as gone, and is open, because its
// end still has to be told. What was never read may have been no record but a
// marker: that cannot be known any more, and too much is told rather than too little.
func (t *Tracker) Expire(start, n int64) (gone []Range) {
	to := min(start, t.next+n)
	unknown := Range{max(t.next, t.committed.Top), to}
	gone = t.Skip(to)
	if unknown.From < unknown.To {
		for o := unknown.From; o < unknown.To; o++ {
			t.push(o)
		}
		gone = append(gone, unknown)
	}
	return gone
}

// takeUnread removes the unread holes below offset and returns them.
func (t *Tracker) takeUnread(offset int64) (taken []Range) {
	for len(t.unread) > 0 && t.unread[0].From < offset {
		h := &t.unread[0]
		taken = append(taken, Range{h.From, min(h.To, offset)})
		if h.To > offset {
			h.From = offset
			break
		}
		t.unread = t.unread[1:]
	}
	return taken
}

// Pass takes note of an offset that was read and needs no work: a control record.
func (t *Tracker) Pass(offset int64) (gone []Range) { return t.Skip(offset + 1) }

func (t *Tracker) push(offset int64) {
	t.open = append(t.open, offset)
	t.closed = append(t.closed, false)
	t.live++
}

// Plan is a commit to be made: what it would say, and what it completes.
type Plan struct {
	Progress Progress
	Metadata string
	done     []int64
}

// Plan makes the commit that completes done (ascending, all open) on top of the
// last one. Each completion is one audit event: seq is the number of events
// before them, and the plan's is after them. If that does not fit limit characters, it completes as many from
// the front as fit, and says how many. Without any that fit it returns
// ErrTooLong; the last commit stays what it is.
func (t *Tracker) Plan(done []int64, nonce uint64, seen, seq int64, limit int) (Plan, int, error) {
	try := func(n int) (Plan, error) {
		p := t.after(done[:n])
		p.Nonce, p.Seen, p.Seq = nonce, seen, seq+int64(n)
		m, err := Encode(p, limit)
		return Plan{Progress: p, Metadata: m, done: done[:n]}, err
	}
	plan, err := try(len(done))
	if err == nil {
		return plan, len(done), nil
	}
	// Completing from the front shortens the encoding or widens it by little, so
	// "fits" is close to monotone; a smaller answer than possible costs a round only.
	n := sort.Search(len(done), func(n int) bool { _, err := try(n); return err != nil }) - 1
	if n < 0 {
		return Plan{}, 0, err
	}
	plan, err = try(n)
	return plan, n, err
}

// after is the progress once done is complete as well.
func (t *Tracker) after(done []int64) Progress {
	p := Progress{Low: t.next, Top: t.next}
	for i, o := range t.open {
		if t.closed[i] {
			continue
		}
		if len(done) > 0 && done[0] == o {
			done = done[1:]
			continue
		}
		p.Holes = appendHole(p.Holes, o, o+1)
	}
	for _, h := range t.unread { // all above what has been read
		p.Holes = appendHole(p.Holes, h.From, h.To)
		p.Top = h.To
	}
	if len(t.unread) > 0 {
		p.Top = max(p.Top, t.committed.Top)
	} else if t.next < t.committed.Top {
		p.Top = t.committed.Top // read again up to next; above it all is done
	}
	// A last hole that reaches up to top says nothing: what lies from top on is incomplete anyway.
	if n := len(p.Holes); n > 0 && p.Holes[n-1].To == p.Top {
		p.Top = p.Holes[n-1].From
		p.Holes = p.Holes[:n-1]
		if n == 1 {
			p.Holes = nil
		}
	}
	p.Low = p.Top
	if len(p.Holes) > 0 {
		p.Low = p.Holes[0].From
	}
	return p
}

// Commit takes note that plan was committed.
func (t *Tracker) Commit(plan Plan) {
	for _, o := range plan.done {
		if i, ok := slices.BinarySearch(t.open, o); ok && !t.closed[i] {
			t.closed[i] = true
			t.live--
		}
	}
	if len(t.open) > 64 && t.live < len(t.open)/2 {
		kept := 0
		for i, o := range t.open {
			if !t.closed[i] {
				t.open[kept] = o
				kept++
			}
		}
		t.open = t.open[:kept]
		clear(t.closed)
		t.closed = t.closed[:kept]
	}
	t.committed = plan.Progress
}

// Stale reports whether a commit that completes nothing would still move the
// committed progress: control records and aborted records were passed.
func (t *Tracker) Stale() bool {
	p := t.after(nil)
	return p.Low != t.committed.Low || p.Top != t.committed.Top
}
