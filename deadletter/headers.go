package deadletter

import (
	"bytes"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Bounds of owned headers. With MaxErrorBytes they keep what a copy adds under 4 KiB, far below MaxOverhead.
const (
	maxWordBytes   = 128               // recon-error-class, recon-reason, recon-rule
	maxStatus      = 999               // recon-error-status
	maxOriginBytes = 249 + 2 + 10 + 19 // the longest topic name Kafka allows, two slashes, int32, int64
)

// An owned header, in the order in which they are written.
type ownedHeader uint8

const (
	ownID ownedHeader = iota
	ownOrigin
	ownAttempt
	ownSnoozes
	ownTimestamp
	ownNotBefore
	ownEnqueued
	ownFirstFailed
	ownErrorClass
	ownErrorStatus
	ownErrorCode
	ownError
	ownReason
	ownRule
	ownRedrive
	ownRedriven
	ownMasked
	ownUnknown // our prefix, a name this version does not know
)

var ownedNames = [ownUnknown]string{
	HeaderID, HeaderOrigin, HeaderAttempt, HeaderSnoozes, HeaderTimestamp, HeaderNotBefore, HeaderEnqueued,
	HeaderFirstFailed, HeaderErrorClass, HeaderErrorStatus, HeaderErrorCode, HeaderError, HeaderReason, HeaderRule, HeaderRedrive, HeaderRedriven, HeaderMasked,
}

func isOwned(key string) bool { return strings.HasPrefix(key, HeaderPrefix) }

func ownedByName(key string) ownedHeader {
	for h, name := range ownedNames {
		if key == name {
			return ownedHeader(h)
		}
	}
	return ownUnknown
}

// foreign is the headers of others, in order. Where they are a prefix of all, as
// on every copy of ours and on every clean source record, nothing is allocated.
func foreign(all []Header) []Header {
	n := 0
	for n < len(all) && !isOwned(all[n].Key) {
		n++
	}
	out := all[:n:n]
	for _, h := range all[n:] {
		if !isOwned(h.Key) {
			out = append(out, h)
		}
	}
	return out
}

// owned is the owned headers of one message of ours.
type owned struct {
	present [ownUnknown]bool
	last    [ownUnknown][]byte // the last well-formed value; nil: none
	// repaired: a duplicate, a value that is not well-formed, or an unknown name was met
	repaired bool
}

// collect sorts headers: it keeps the owned ones and returns the others.
func (o *owned) collect(all []Header) []Header {
	for _, h := range all {
		if !isOwned(h.Key) {
			continue
		}
		name := ownedByName(h.Key)
		if name == ownUnknown {
			o.repaired = true
			continue
		}
		o.repaired = o.repaired || o.present[name]
		o.present[name] = true
		switch {
		case wellFormed(name, h.Value):
			o.last[name] = h.Value
		case name != ownNotBefore && name != ownID: // they have notes of their own
			o.repaired = true
		}
	}
	return foreign(all)
}

// wellFormed says whether a value can be one this worker wrote. Null and empty never are.
func wellFormed(name ownedHeader, v []byte) bool {
	if len(v) == 0 {
		return false
	}
	switch name {
	case ownID:
		return isIdentity(v)
	case ownOrigin:
		return isOrigin(v)
	case ownErrorClass, ownError, ownReason, ownRule, ownMasked:
		return utf8.Valid(v)
	case ownErrorCode:
		return ValidCode(borrow(v))
	case ownErrorStatus:
		n, ok := parseDecimal(v)
		return ok && n <= maxStatus
	}
	_, ok := parseDecimal(v)
	return ok
}

func isIdentity(v []byte) bool {
	if len(v) != 2*idBytes {
		return false
	}
	for _, c := range v {
		if !isDigit(c) && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// isOrigin says whether v is topic/partition/offset.
func isOrigin(v []byte) bool {
	topic, rest, _ := bytes.Cut(v, []byte("/"))
	partition, offset, _ := bytes.Cut(rest, []byte("/"))
	p, okP := parseDecimal(partition)
	_, okO := parseDecimal(offset)
	if len(topic) == 0 || len(v) > maxOriginBytes || !okP || p > math.MaxInt32 || !okO {
		return false
	}
	for _, c := range topic { // Kafka's alphabet for topic names
		if !isDigit(c) && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && c != '.' && c != '_' && c != '-' {
			return false
		}
	}
	return true
}

// counter reads a counter, clamped to int32.
func (o *owned) counter(name ownedHeader) (n int, ok bool) {
	long, ok := parseDecimal(o.last[name])
	if long > math.MaxInt32 {
		o.repaired = true
		long = math.MaxInt32
	}
	return int(long), ok
}

// past reads a time that has been, ms since epoch, 0 if there is none. A day
// ahead of now is more than clocks differ: such a time becomes the arrival, or a
// record would look young for ever.
func (o *owned) past(name ownedHeader, now, arrival int64) int64 {
	t, _ := parseDecimal(o.last[name])
	if t > now+maxAhead {
		o.repaired = true
		return arrival
	}
	return t
}

// word reads a text of at most limit bytes.
func (o *owned) word(name ownedHeader, limit int) string {
	v := o.last[name]
	if len(v) > limit {
		o.repaired = true
	}
	return cutText(borrow(v[:min(len(v), limit+utf8.UTFMax)]), limit)
}

// believe fills the record from the owned headers of a topic of ours. It
// returns the fault of the control headers that nothing can replace.
func (r *Record) believe(own *owned, m Message, o ReadOptions, arrival int64) *MalformedError {
	now := o.Now.UnixMilli()
	if own.last[ownID] != nil {
		r.ID = borrow(own.last[ownID])
	} else {
		r.arrive(m, o)
		r.note(NoteIdentityMissing)
	}
	// As the broker gave it then, right or wrong: nothing is decided by it.
	if t, _ := parseDecimal(own.last[ownTimestamp]); t > 0 {
		r.Timestamp = t
	}
	switch {
	case own.last[ownOrigin] != nil:
		r.Origin = borrow(own.last[ownOrigin])
	case r.Origin == "": // audit needs one: where the record is known to have been
		r.Origin = m.Place.String()
		own.repaired = true
	}
	r.readEnqueued(own, now, arrival)
	r.FirstFailed = own.past(ownFirstFailed, now, arrival)
	r.Redriven = own.past(ownRedriven, now, arrival)
	r.ErrorClass = own.word(ownErrorClass, maxWordBytes)
	r.ErrorStatus, _ = own.counter(ownErrorStatus)
	r.ErrorCode = own.word(ownErrorCode, MaxCodeBytes)
	r.Error = own.word(ownError, MaxErrorBytes)
	r.Reason = own.word(ownReason, maxWordBytes)
	r.Rule = own.word(ownRule, maxWordBytes)
	r.Masked = own.present[ownMasked] // whatever it says: what may be masked is not sent back
	r.readNotBefore(own, o, now, arrival)

	// Snoozes are a budget: one that cannot be read is spent, never full again.
	snoozes, ok := own.counter(ownSnoozes)
	if !ok && own.present[ownSnoozes] {
		snoozes = math.MaxInt32
	}
	r.Snoozes = snoozes

	var fault *MalformedError
	if n, ok := own.counter(ownAttempt); ok {
		r.Attempt = n // else the value's attempts stay: the least it can be
	} else if own.present[ownAttempt] {
		fault = &MalformedError{Header: HeaderAttempt, Offset: -1, Problem: "not a decimal number"}
	} else if o.Kind == Tier {
		fault = &MalformedError{Header: HeaderAttempt, Offset: -1, Problem: "missing on a record of a tier"}
	}
	redrive, ok := own.counter(ownRedrive)
	if !ok && own.present[ownRedrive] && fault == nil {
		fault = &MalformedError{Header: HeaderRedrive, Offset: -1, Problem: "not a decimal number"}
	}
	r.Redrive = redrive
	if own.repaired {
		r.note(NoteHeaderRepaired)
	}
	return fault
}

// readEnqueued: the header; else the value, as on arrival; else the first arrival.
func (r *Record) readEnqueued(own *owned, now, arrival int64) {
	switch t := own.past(ownEnqueued, now, arrival); {
	case t > 0:
		r.Enqueued = t
	case r.Enqueued > arrival:
		r.Enqueued = arrival
		r.note(NoteEnqueuedAhead)
	case r.Enqueued == 0 && year2000 <= r.Timestamp && r.Timestamp <= arrival:
		r.Enqueued = r.Timestamp // else Read takes the arrival of this copy
	}
}

// readNotBefore: a tier's record needs one, a parked one may have one, and
// nothing waits for it in poison.
func (r *Record) readNotBefore(own *owned, o ReadOptions, now, arrival int64) {
	t, ok := parseDecimal(own.last[ownNotBefore])
	ok = ok && t > 0 // 0 is how "not known" would be written
	switch {
	case !ok && (o.Kind == Tier || own.present[ownNotBefore]):
		r.note(NoteNotBeforeBad)
	case ok && o.Kind != Poison && t > addMillis(now, o.MaxWait):
		r.note(NoteNotBeforeFar)
	default:
		r.NotBefore = t
		return
	}
	if o.Kind != Poison {
		r.NotBefore = addMillis(arrival, o.Delay)
	}
}

func addMillis(t int64, d time.Duration) int64 { return t + d.Milliseconds() }

// Headers is the headers of a copy of the record: the foreign ones in order,
// then each owned one that has something to say, once.
func (r *Record) Headers() []Header {
	// All owned values share one buffer: 10 numbers, "true", and the texts.
	texts := 2*idBytes + len(r.Origin) + len(r.ErrorClass) + len(r.ErrorCode) + min(len(r.Error), MaxErrorBytes) + len(r.Reason) + len(r.Rule)
	hs, _ := r.AppendHeaders(make([]Header, 0, len(r.Foreign)+len(ownedNames)), make([]byte, 0, 192+texts))
	return hs
}

// AppendHeaders appends what Headers returns to dst, and the values of the owned
// ones to buf, which they share. Values of foreign headers are shared with the record.
func (r *Record) AppendHeaders(dst []Header, buf []byte) ([]Header, []byte) {
	dst = append(dst, r.Foreign...)
	text := func(name, value string) {
		if value == "" {
			return
		}
		start := len(buf)
		buf = append(buf, value...)
		dst = append(dst, Header{Key: name, Value: buf[start:len(buf):len(buf)]})
	}
	number := func(name string, n int64) {
		start := len(buf)
		buf = strconv.AppendInt(buf, n, 10)
		dst = append(dst, Header{Key: name, Value: buf[start:len(buf):len(buf)]})
	}
	optional := func(name string, n int64) {
		if n > 0 {
			number(name, n)
		}
	}
	text(HeaderID, cutText(r.ID, 2*idBytes))
	text(HeaderOrigin, cutText(r.Origin, maxOriginBytes))
	number(HeaderAttempt, clampCounter(r.Attempt))
	optional(HeaderSnoozes, clampCounter(r.Snoozes))
	optional(HeaderTimestamp, r.Timestamp)
	optional(HeaderNotBefore, r.NotBefore)
	optional(HeaderEnqueued, r.Enqueued)
	optional(HeaderFirstFailed, r.FirstFailed)
	text(HeaderErrorClass, cutText(r.ErrorClass, maxWordBytes))
	optional(HeaderErrorStatus, int64(min(r.ErrorStatus, maxStatus)))
	if ValidCode(r.ErrorCode) {
		text(HeaderErrorCode, r.ErrorCode)
	}
	text(HeaderError, CutError(r.Error))
	text(HeaderReason, cutText(r.Reason, maxWordBytes))
	text(HeaderRule, cutText(r.Rule, maxWordBytes))
	optional(HeaderRedrive, clampCounter(r.Redrive))
	optional(HeaderRedriven, r.Redriven)
	if r.Masked {
		text(HeaderMasked, "true")
	}
	return dst, buf
}

// clampCounter keeps a counter in what every reader takes.
func clampCounter(n int) int64 { return int64(min(max(n, 0), math.MaxInt32)) }

// CutError makes a message fit for the recon-error header: valid UTF-8, at most
// MaxErrorBytes, cut on a rune boundary.
func CutError(s string) string { return cutText(s, MaxErrorBytes) }

// cutText makes s valid UTF-8 of at most limit bytes.
func cutText(s string, limit int) string {
	if len(s) <= limit && utf8.ValidString(s) {
		return s
	}
	// A message can be megabytes; bad bytes can shrink when replaced, but what
	// is behind a few times the limit is not worth reading.
	s = strings.ToValidUTF8(cutRune(s, 4*limit), "\uFFFD")
	return cutRune(s, limit)
}

// cutRune cuts s to at most limit bytes, not inside a rune.
func cutRune(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	n := limit
	for n > 0 && n > limit-utf8.UTFMax && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// Bytes that a record takes beside its contents: the struct and what the broker
// frames it with (sizeRecord), a header's struct and length prefixes
// (sizeHeader), and the names and numbers of the owned headers (sizeOwned).
const (
	sizeRecord = 512
	sizeHeader = 48
	sizeOwned  = 512
)

// Size is what the record weighs in memory, in bytes, approximately; a copy of
// it on the wire, uncompressed, weighs no more.
func (r *Record) Size() int {
	n := sizeRecord + sizeOwned + len(r.Key) + len(r.Value) +
		len(r.ID) + len(r.Origin) + len(r.DiscrepancyID) + len(r.Category) +
		len(r.ErrorClass) + len(r.ErrorCode) + len(r.Error) + len(r.Reason) + len(r.Rule)
	for _, h := range r.Foreign {
		n += sizeHeader + len(h.Key) + len(h.Value)
	}
	return n
}
