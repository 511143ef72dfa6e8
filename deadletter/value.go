package deadletter

import (
	"bytes"
	"encoding/binary"
	"math"
	"unicode/utf8"
)

// Bounds of a value. Its bytes are never changed: what is out of bounds is malformed.
const (
	MaxDepth      = 512 // nesting of objects and arrays, the outermost included
	MaxFieldBytes = 512 // discrepancy_id and category, decoded: they become labels and subjects
)

// Times of a value: an enqueued_ms below year2000 (946684800000 is
// 2000-01-01T00:00:00Z) or more than maxAhead ahead of the reader is malformed.
const (
	year2000 = 946_684_800_000 // ms since epoch
	maxAhead = 24 * 60 * 60 * 1000
)

// A field of the contract, in the order in which a missing one is reported.
type field uint8

const (
	fieldID field = iota
	fieldCategory
	fieldContext
	fieldEnqueued
	fieldVerdict
	fieldAttempts
	fieldMaxAttempts
	fieldNone // not of the contract: ignored, its bytes are kept
)

const requiredFields = fieldEnqueued + 1

var fieldNames = [fieldNone]string{
	"discrepancy_id", "category", "context", "enqueued_ms", "verdict", "attempts", "max_attempts",
}

// values is what could be read of a record's value.
type values struct {
	discrepancyID string
	category      string
	enqueued      int64 // ms since epoch; 0: unknown or unreadable
	attempts      int
	maxAttempts   int
}

// parseValue reads the fields of the contract and validates the whole document
// by RFC 8259, strictly: no invalid UTF-8, no byte order mark, nothing behind
// the object, at most MaxDepth levels. Numbers of the contract are integers
// written plainly: 5.0 and 1e12 are refused, as encoding/json refuses them for
// an integer. now is ms since epoch. On a fault it returns what was readable.
func parseValue(data []byte, now int64) (values, *MalformedError) {
	switch {
	case data == nil:
		return values{}, &MalformedError{Offset: 0, Problem: "null value (tombstone), an object is needed"}
	case len(data) == 0:
		return values{}, &MalformedError{Offset: 0, Problem: "empty value, an object is needed"}
	}
	s := scanner{data: data, now: now}
	// Outside of strings every byte is ASCII, so one fast pass up front settles
	// UTF-8 for the rest. What lies before a bad byte is still read.
	if !utf8.Valid(data) {
		s.data = data[:validPrefix(data)]
	}
	ok := s.document()
	switch {
	case !ok && s.pos < len(s.data):
		return s.out, &MalformedError{Offset: s.pos, Problem: s.problem}
	case len(s.data) < len(data):
		return s.out, &MalformedError{Offset: len(s.data), Problem: "invalid UTF-8"}
	case !ok:
		return s.out, &MalformedError{Offset: s.pos, Problem: s.problem}
	case s.fault != nil:
		return s.out, s.fault
	}
	for f := range requiredFields {
		if s.seen&(1<<f) == 0 {
			return s.out, &MalformedError{Field: fieldNames[f], Offset: -1, Problem: "missing"}
		}
	}
	return s.out, nil
}

// validPrefix is the length of the longest prefix that is UTF-8.
func validPrefix(b []byte) int {
	n := 0
	for n < len(b) {
		r, size := utf8.DecodeRune(b[n:])
		if r == utf8.RuneError && size == 1 {
			break
		}
		n += size
	}
	return n
}

// scanner walks one document once. Its methods return false at a syntax error,
// with problem set and pos at the byte; faults of single fields are kept in
// fault (the first one) and do not stop it.
type scanner struct {
	data    []byte
	pos     int
	now     int64
	problem string
	escaped bool // the last string has escapes

	seen  uint8 // bit per field of the contract
	fault *MalformedError
	out   values
}

func (s *scanner) fail(problem string) bool {
	s.problem = problem
	if s.pos >= len(s.data) {
		s.problem = "unexpected end"
	}
	return false
}

func (s *scanner) space() {
	for s.pos < len(s.data) {
		switch s.data[s.pos] {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return
		}
	}
}

// next says whether the next byte is c, and steps over it.
func (s *scanner) next(c byte) bool {
	if s.pos < len(s.data) && s.data[s.pos] == c {
		s.pos++
		return true
	}
	return false
}

func (s *scanner) document() bool {
	if bytes.HasPrefix(s.data, []byte("\xEF\xBB\xBF")) {
		return s.fail("byte order mark, plain UTF-8 is needed")
	}
	s.space()
	if !s.next('{') {
		return s.fail("not a JSON object")
	}
	if !s.object(1) {
		return false
	}
	s.space()
	if s.pos < len(s.data) {
		return s.fail("data after the object")
	}
	return true
}

// value steps over one value that lies inside depth containers.
func (s *scanner) value(depth int) bool {
	if s.pos >= len(s.data) {
		return s.fail("")
	}
	switch c := s.data[s.pos]; c {
	case '"':
		s.pos++
		return s.text()
	case '{', '[':
		if depth >= MaxDepth {
			return s.fail("nested deeper than 512 levels")
		}
		s.pos++
		if c == '{' {
			return s.object(depth + 1)
		}
		return s.array(depth + 1)
	case 't':
		return s.literal("true")
	case 'f':
		return s.literal("false")
	case 'n':
		return s.literal("null")
	case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		return s.number()
	}
	return s.fail("not a JSON value (NaN and Infinity are none)")
}

// object steps over the members behind a "{"; at depth 1 they are fields of the record.
func (s *scanner) object(depth int) bool {
	s.space()
	if s.next('}') {
		return true
	}
	for {
		s.space()
		if !s.next('"') {
			return s.fail("a quoted name is needed")
		}
		start := s.pos
		if !s.text() {
			return false
		}
		name, escaped := s.data[start:s.pos-1], s.escaped
		s.space()
		if !s.next(':') {
			return s.fail(`":" is needed`)
		}
		s.space()
		ok := false
		if depth == 1 {
			ok = s.member(contractField(name, escaped))
		} else {
			ok = s.value(depth)
		}
		if !ok {
			return false
		}
		s.space()
		if s.next(',') {
			continue
		}
		if s.next('}') {
			return true
		}
		return s.fail(`"," or "}" is needed`)
	}
}

func (s *scanner) array(depth int) bool {
	s.space()
	if s.next(']') {
		return true
	}
	for {
		s.space()
		if !s.value(depth) {
			return false
		}
		s.space()
		if s.next(',') {
			continue
		}
		if s.next(']') {
			return true
		}
		return s.fail(`"," or "]" is needed`)
	}
}

func (s *scanner) literal(word string) bool {
	for i := range len(word) {
		if !s.next(word[i]) {
			return s.fail("not a JSON value")
		}
	}
	return true
}

// text steps over a string behind its opening quote.
func (s *scanner) text() bool {
	s.escaped = false
	data := s.data
	i := s.pos
	for i+8 <= len(data) && plain(binary.LittleEndian.Uint64(data[i:])) {
		i += 8
	}
	for ; i < len(data); i++ {
		switch c := data[i]; {
		case c == '"':
			s.pos = i + 1
			return true
		case c < 0x20:
			s.pos = i
			return s.fail("control character in a string")
		case c == '\\':
			s.escaped = true
			s.pos = i + 1
			if !s.escape() {
				return false
			}
			i = s.pos - 1
		}
	}
	s.pos = len(data)
	return s.fail("")
}

// plain reports whether none of eight bytes ends a string, is a backslash or a
// control character: the top bit of a byte of each term says that it is one.
func plain(w uint64) bool {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	quote, slash := w^ones*'"', w^ones*'\\'
	return ((w-ones*0x20)&^w|(quote-ones)&^quote|(slash-ones)&^slash)&tops == 0
}

// escape steps over an escape behind its backslash.
func (s *scanner) escape() bool {
	if s.pos >= len(s.data) {
		return s.fail("")
	}
	switch s.data[s.pos] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.pos++
		return true
	case 'u':
		s.pos++
		for range 4 {
			if s.pos >= len(s.data) || !isHex(s.data[s.pos]) {
				return s.fail(`four hex digits are needed after "\u"`)
			}
			s.pos++
		}
		return true
	}
	return s.fail("unknown escape in a string")
}

func (s *scanner) number() bool {
	s.next('-')
	if !s.next('0') && !s.digits() {
		return s.fail("a digit is needed")
	}
	if s.next('.') && !s.digits() {
		return s.fail("a digit is needed")
	}
	if s.next('e') || s.next('E') {
		if !s.next('+') {
			s.next('-')
		}
		if !s.digits() {
			return s.fail("a digit is needed")
		}
	}
	return true
}

func (s *scanner) digits() bool {
	start := s.pos
	for s.pos < len(s.data) && isDigit(s.data[s.pos]) {
		s.pos++
	}
	return s.pos > start
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isHex(c byte) bool {
	return isDigit(c) || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

// contractField says which field a name is. Escapes count: "attempt\u0073" is attempts.
func contractField(name []byte, escaped bool) field {
	if escaped {
		var buf [6 * len("discrepancy_id")]byte // the longest name, all of it in \uXXXX
		if len(name) > len(buf) {
			return fieldNone
		}
		var ok bool
		if name, ok = unescape(buf[:0], name); !ok {
			return fieldNone
		}
	}
	for f, known := range fieldNames {
		if string(name) == known {
			return field(f)
		}
	}
	return fieldNone
}

// member reads the value of a field of the record.
func (s *scanner) member(f field) bool {
	start := s.pos
	if !s.value(1) {
		return false
	}
	if f == fieldNone {
		return true
	}
	if s.seen&(1<<f) != 0 { // which one counts is a guess: the first stays, for people
		s.refuse(f, start, "duplicate field")
		return true
	}
	s.seen |= 1 << f
	raw := s.data[start:s.pos]
	switch f {
	case fieldID:
		s.out.discrepancyID = s.label(f, start, raw)
	case fieldCategory:
		s.out.category = s.label(f, start, raw)
	case fieldContext:
		if raw[0] != '{' {
			s.refuse(f, start, "not an object")
		}
	case fieldVerdict:
		if raw[0] != '{' && raw[0] != 'n' {
			s.refuse(f, start, "not an object")
		}
	case fieldEnqueued:
		s.out.enqueued = s.enqueued(start, raw)
	case fieldAttempts:
		s.out.attempts = s.count(f, start, raw, 0)
	case fieldMaxAttempts:
		s.out.maxAttempts = s.count(f, start, raw, 1)
	}
	return true
}

// refuse keeps the first fault of a field.
func (s *scanner) refuse(f field, offset int, problem string) {
	if s.fault == nil {
		s.fault = &MalformedError{Field: fieldNames[f], Offset: offset, Problem: problem}
	}
}

// label reads a non-empty string of at most MaxFieldBytes.
func (s *scanner) label(f field, start int, raw []byte) string {
	if raw[0] != '"' {
		s.refuse(f, start, "not a string")
		return ""
	}
	raw = raw[1 : len(raw)-1]
	if len(raw) > 6*MaxFieldBytes { // an escape is at most six times what it stands for
		s.refuse(f, start, "longer than 512 bytes")
		return ""
	}
	if s.escaped {
		var ok bool
		if raw, ok = unescape(make([]byte, 0, len(raw)), raw); !ok {
			// Half a surrogate pair has no UTF-8: the id shown would not be the id sent.
			s.refuse(f, start, "unpaired surrogate")
			return ""
		}
	}
	switch {
	case len(raw) == 0:
		s.refuse(f, start, "empty string")
	case len(raw) > MaxFieldBytes:
		s.refuse(f, start, "longer than 512 bytes")
		return ""
	}
	return borrow(raw)
}

// integer reads a plain integer; what does not fit is the nearest that does.
func (s *scanner) integer(f field, start int, raw []byte) (n int64, ok bool) {
	digits, negative := bytes.CutPrefix(raw, []byte("-"))
	n, ok = parseDecimal(digits)
	if !ok {
		s.refuse(f, start, "not an integer (without quotes, fraction or exponent)")
		return 0, false
	}
	if negative {
		n = -n
	}
	return n, true
}

func (s *scanner) count(f field, start int, raw []byte, least int64) int {
	n, ok := s.integer(f, start, raw)
	switch {
	case !ok:
		return 0
	case n < least:
		s.refuse(f, start, "too small")
		return 0
	case n > math.MaxInt32:
		s.refuse(f, start, "greater than 2147483647")
		return 0
	}
	return int(n)
}

// enqueued reads a time, ms since epoch; 0 is legal and means unknown.
func (s *scanner) enqueued(start int, raw []byte) int64 {
	n, ok := s.integer(fieldEnqueued, start, raw)
	switch {
	case !ok || n == 0:
		return 0
	case n < year2000:
		s.refuse(fieldEnqueued, start, "before 2000 (milliseconds since 1970 are needed)")
		return 0
	case n > s.now+maxAhead:
		s.refuse(fieldEnqueued, start, "more than 24 h ahead (milliseconds since 1970 are needed)")
		return 0
	}
	return n
}

// parseDecimal reads decimal digits and nothing else: no sign, no space. A
// number beyond int64 is math.MaxInt64, so a counter never wraps.
func parseDecimal(b []byte) (n int64, ok bool) {
	if len(b) == 0 {
		return 0, false
	}
	for _, c := range b {
		if !isDigit(c) {
			return 0, false
		}
		d := int64(c - '0')
		if n > (math.MaxInt64-d)/10 {
			n = math.MaxInt64
			continue
		}
		n = n*10 + d
	}
	return n, true
}

// unescape appends the meaning of a string that text has accepted. It returns
// false for half a surrogate pair.
func unescape(dst, src []byte) ([]byte, bool) {
	for len(src) > 0 {
		c := src[0]
		if c != '\\' {
			dst, src = append(dst, c), src[1:]
			continue
		}
		if src[1] != 'u' {
			dst, src = append(dst, plainEscape(src[1])), src[2:]
			continue
		}
		r := hexRune(src[2:6])
		src = src[6:]
		if 0xD800 <= r && r <= 0xDFFF {
			if r >= 0xDC00 || len(src) < 6 || src[0] != '\\' || src[1] != 'u' {
				return dst, false
			}
			low := hexRune(src[2:6])
			if low < 0xDC00 || low > 0xDFFF {
				return dst, false
			}
			src = src[6:]
			r = 0x10000 + (r-0xD800)<<10 + (low - 0xDC00)
		}
		dst = utf8.AppendRune(dst, r)
	}
	return dst, true
}

func plainEscape(c byte) byte {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return c // ", \ and /
}

func hexRune(b []byte) rune {
	var r rune
	for _, c := range b {
		r <<= 4
		switch {
		case isDigit(c):
			r |= rune(c - '0')
		case c >= 'a':
			r |= rune(c-'a') + 10
		default:
			r |= rune(c-'A') + 10
		}
	}
	return r
}
