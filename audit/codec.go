package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

// MaxField bounds each text of an event, in bytes of UTF-8 before JSON escaping;
// longer texts are cut on a rune boundary, so that no record can make an event
// that the audit topic refuses.
const MaxField = 1024

const (
	specVersion = "1.0"
	contentType = "application/json"
	timeLayout  = "2006-01-02T15:04:05.000Z" // RFC 3339, milliseconds, UTC only
	noSubject   = "-"                        // CloudEvents wants a subject that is not empty

	maxTopic = 249 // Kafka's limit of a topic name, in bytes
)

// ErrUnknownType is in the error of Parse for an event whose type this version
// does not know: a newer worker may have written it.
var ErrUnknownType = errors.New("unknown event type")

// ID returns the CloudEvents id: 32 hex digits, the first 16 bytes of SHA-256
// over record id, type and input. It is the same whenever the event is written
// again. The input's topic counts by its id, so that a topic created again under
// the same name makes other events; by its name where the broker has no ids.
func (e Event) ID() string {
	return string(e.appendID(nil))
}

// appendID appends what ID returns. The fields are length-prefixed: no two
// different events have the same bytes under the hash.
func (e Event) appendID(dst []byte) []byte {
	var room [256]byte
	b := room[:0]
	b = appendPrefixed(b, e.RecordID)
	b = appendPrefixed(b, string(e.Type))
	if e.Input.TopicID != [16]byte{} {
		b = append(b, 'i')
		b = append(b, e.Input.TopicID[:]...)
	} else {
		b = append(b, 'n')
		b = appendPrefixed(b, e.Input.Topic)
	}
	b = binary.BigEndian.AppendUint32(b, uint32(e.Input.Partition))
	b = binary.BigEndian.AppendUint64(b, uint64(e.Input.Offset))
	sum := sha256.Sum256(b)
	return hex.AppendEncode(dst, sum[:16])
}

func appendPrefixed(b []byte, s string) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
	return append(b, s...)
}

// Key returns the Kafka key: the recon-id, nil where the event has none.
func (e Event) Key() []byte {
	if e.RecordID == "" {
		return nil
	}
	return []byte(e.RecordID)
}

// AppendJSON appends the event as CloudEvents 1.0 structured JSON. Texts are cut
// at MaxField; bytes that are not UTF-8 become U+FFFD; an empty subject becomes "-".
// data.input_topic_id, 32 hex digits, is there unless the topic has no id: with it
// the event's id can be computed again by whoever verifies the trail.
func (e Event) AppendJSON(dst []byte) []byte {
	subject := e.Subject
	if subject == "" {
		subject = noSubject
	}
	dst = append(dst, `{"specversion":"`+specVersion+`","id":"`...)
	dst = e.appendID(dst)
	dst = append(dst, `","source":`...)
	dst = appendString(dst, e.Source)
	dst = append(dst, `,"type":`...)
	dst = appendString(dst, string(e.Type))
	dst = append(dst, `,"subject":`...)
	dst = appendString(dst, subject)
	dst = append(dst, `,"time":"`...)
	dst = e.Time.UTC().AppendFormat(dst, timeLayout)
	dst = append(dst, `","datacontenttype":"`+contentType+`","data":{"origin":`...)
	dst = appendString(dst, e.Origin)
	dst = append(dst, `,"input":`...)
	dst = appendString(dst, e.Input.Topic)
	dst = dst[:len(dst)-1] // the closing quote: the place goes on
	dst = append(dst, '/')
	dst = strconv.AppendInt(dst, int64(e.Input.Partition), 10)
	dst = append(dst, '/')
	dst = strconv.AppendInt(dst, e.Input.Offset, 10)
	dst = append(dst, '"')
	if e.Input.TopicID != [16]byte{} {
		dst = append(dst, `,"input_topic_id":"`...)
		dst = hex.AppendEncode(dst, e.Input.TopicID[:])
		dst = append(dst, '"')
	}
	dst = append(dst, `,"recon_id":`...)
	dst = appendString(dst, e.RecordID)
	dst = append(dst, `,"attempt":`...)
	dst = strconv.AppendInt(dst, int64(e.Attempt), 10)
	dst = append(dst, `,"category":`...)
	dst = appendString(dst, e.Category)
	dst = append(dst, `,"reason":`...)
	dst = appendString(dst, e.Reason)
	dst = append(dst, `,"rule":`...)
	dst = appendString(dst, e.Rule)
	dst = append(dst, `,"seq":`...)
	dst = strconv.AppendInt(dst, e.Seq, 10)
	return append(dst, `}}`...)
}

// appendString appends s as a JSON string (RFC 8259), cut at MaxField.
func appendString(dst []byte, s string) []byte {
	const digits = "0123456789abcdef"
	s = cut(s, MaxField)
	dst = append(dst, '"')
	start := 0 // of what needs no escape and is not yet copied
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && size == 1 {
				dst = append(dst, s[start:i]...)
				dst = append(dst, "\uFFFD"...)
				start = i + 1
			}
			i += size
			continue
		}
		if c >= 0x20 && c != '"' && c != '\\' {
			i++
			continue
		}
		dst = append(dst, s[start:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\t':
			dst = append(dst, '\\', 't')
		case '\r':
			dst = append(dst, '\\', 'r')
		default:
			dst = append(dst, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
		}
		i++
		start = i
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"')
}

// cut returns at most limit bytes of s and does not end within a rune.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	end := limit
	for end > limit-utf8.UTFMax && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}

// Parse reads what AppendJSON wrote. It is strict, for the trail is evidence: every
// member must be there once, by its exact name and type and in its range, and the
// id must be the one that the content gives. Members it does not know are ignored:
// a newer worker may add some. The error names the member and never its content;
// for a type it does not know it is ErrUnknownType.
func Parse(value []byte) (Event, error) {
	e, err := parse(value)
	if err != nil {
		return Event{}, fmt.Errorf("parse audit event: %w", err)
	}
	return e, nil
}

func parse(value []byte) (Event, error) {
	if !utf8.Valid(value) {
		return Event{}, errors.New("not UTF-8")
	}
	outer, err := readObject("event", value)
	if err != nil {
		return Event{}, err
	}
	version, id, typ := outer.text("specversion"), outer.text("id"), outer.text("type")
	written, content := outer.text("time"), outer.text("datacontenttype")
	e := Event{Type: Type(typ), Source: outer.text("source"), Subject: outer.text("subject")}
	raw := outer.take("data")
	if outer.err != nil {
		return Event{}, outer.err
	}

	data, err := readObject("data", raw)
	if err != nil {
		return Event{}, err
	}
	input := data.text("input")
	topicID := ""
	if _, ok := data.members["input_topic_id"]; ok {
		topicID = data.text("input_topic_id")
	}
	e.Origin = data.text("origin")
	e.RecordID = data.text("recon_id")
	e.Attempt = int(data.integer("attempt", 0, math.MaxInt32))
	e.Category = data.text("category")
	e.Reason = data.text("reason")
	e.Rule = data.text("rule")
	e.Seq = data.integer("seq", 1, math.MaxInt64)
	if data.err != nil {
		return Event{}, data.err
	}

	switch {
	case version != specVersion:
		return Event{}, errors.New("specversion: not " + specVersion)
	case content != contentType:
		return Event{}, errors.New("datacontenttype: not " + contentType)
	case !slices.Contains(types, e.Type):
		return Event{}, fmt.Errorf("type: %w", ErrUnknownType)
	case e.Source == "":
		return Event{}, errors.New("source: empty")
	case e.Subject == "":
		return Event{}, errors.New("subject: empty")
	}
	if e.Time, err = time.Parse(timeLayout, written); err != nil || e.Time.Format(timeLayout) != written {
		return Event{}, errors.New("time: not RFC 3339 with milliseconds in UTC")
	}
	var ok bool
	if e.Input, ok = parsePlace(input); !ok {
		return Event{}, errors.New("data.input: not topic/partition/offset")
	}
	if _, ok := data.members["input_topic_id"]; ok {
		if !isHex16(topicID) {
			return Event{}, errors.New("data.input_topic_id: not 32 lower-case hex digits")
		}
		_, _ = hex.Decode(e.Input.TopicID[:], []byte(topicID)) // checked above
	}
	gone := e.Type == Expired // an expired record could not be read
	if _, ok := parsePlace(e.Origin); !ok && (e.Origin != "" || !gone) {
		return Event{}, errors.New("data.origin: not topic/partition/offset")
	}
	if !isHex16(e.RecordID) && (e.RecordID != "" || !gone) {
		return Event{}, errors.New("data.recon_id: not 32 lower-case hex digits")
	}
	if id != e.ID() {
		return Event{}, errors.New("id: not the hash of record id, type and input")
	}
	return e, nil
}

// object is a JSON object's members by their exact names. Its first fault sticks
// in err, so that a reader checks once.
type object struct {
	name    string
	members map[string]json.RawMessage
	err     error
}

// readObject reads one object and nothing after it. encoding/json alone would take
// the last of two members of one name, and names in any case.
func readObject(name string, b []byte) (*object, error) {
	o := &object{name: name, members: make(map[string]json.RawMessage, 12)}
	dec := json.NewDecoder(bytes.NewReader(b))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, fmt.Errorf("%s: not a JSON object", name)
	}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return nil, fmt.Errorf("%s: not JSON", name)
		}
		key, ok := t.(string)
		if !ok {
			return nil, fmt.Errorf("%s: not JSON", name)
		}
		if _, twice := o.members[key]; twice {
			return nil, fmt.Errorf("%s: a member is there twice", name)
		}
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return nil, fmt.Errorf("%s: not JSON", name)
		}
		o.members[key] = raw
	}
	if _, err := dec.Token(); err != nil {
		return nil, fmt.Errorf("%s: not JSON", name)
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, fmt.Errorf("%s: something follows it", name)
	}
	return o, nil
}

func (o *object) fail(member, what string) {
	if o.err == nil {
		o.err = fmt.Errorf("%s.%s: %s", o.name, member, what)
	}
}

func (o *object) take(member string) json.RawMessage {
	raw, ok := o.members[member]
	if !ok {
		o.fail(member, "missing")
	}
	return raw
}

func (o *object) text(member string) string {
	raw := o.take(member)
	var s string
	if o.err == nil && (raw[0] != '"' || json.Unmarshal(raw, &s) != nil) {
		o.fail(member, "not a string")
	}
	return s
}

func (o *object) integer(member string, least, most int64) int64 {
	raw := o.take(member)
	if o.err != nil {
		return 0
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil || n < least || n > most {
		o.fail(member, fmt.Sprintf("not an integer from %d to %d", least, most))
	}
	return n
}

func isHex16(s string) bool {
	if len(s) != 32 {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// Partition returns the audit partition of an event: by the topic and partition of
// the record's origin, so that one life is in order on one partition. It is the
// 64-bit FNV-1a hash of the topic's name, a zero byte and the partition as four
// big-endian bytes, modulo partitions. It can never change: a life would go on
// elsewhere, out of order. For partitions of 1 or less it is 0.
func Partition(originTopic string, originPartition int32, partitions int32) int32 {
	const (
		offset = 14695981039346656037
		prime  = 1099511628211
	)
	if partitions <= 1 {
		return 0
	}
	h := uint64(offset)
	for i := range len(originTopic) {
		h = (h ^ uint64(originTopic[i])) * prime
	}
	h *= prime // the zero byte: h ^ 0 is h
	for shift := 24; shift >= 0; shift -= 8 {
		h = (h ^ uint64(byte(originPartition>>shift))) * prime
	}
	return int32(h % uint64(partitions))
}

// OriginTopic returns topic and partition of an origin ("topic/partition/offset",
// see deadletter.HeaderOrigin); ok is false for anything that is not exactly that.
func OriginTopic(origin string) (topic string, partition int32, ok bool) {
	p, ok := parsePlace(origin)
	return p.Topic, p.Partition, ok
}

// parsePlace reads topic/partition/offset: a legal Kafka topic name and plain
// decimals, without sign or leading zeros. On a fault the place is zero.
func parsePlace(s string) (deadletter.Place, bool) {
	topic, rest, ok1 := strings.Cut(s, "/")
	first, second, ok2 := strings.Cut(rest, "/")
	partition, ok3 := parseDecimal(first, math.MaxInt32)
	offset, ok4 := parseDecimal(second, math.MaxInt64)
	if !ok1 || !ok2 || !ok3 || !ok4 || !legalTopic(topic) {
		return deadletter.Place{}, false
	}
	return deadletter.Place{Topic: topic, Partition: int32(partition), Offset: offset}, true
}

func parseDecimal(s string, most int64) (int64, bool) {
	if s == "" || s[0] == '+' || s[0] == '-' || s[0] == '0' && len(s) > 1 {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil && n <= most
}

func legalTopic(s string) bool {
	if s == "" || len(s) > maxTopic {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' {
			return false
		}
	}
	return true
}
