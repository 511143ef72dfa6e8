package deadletter

import (
	"encoding/binary"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// MaxFactBytes bounds the value of a fact; longer ones are cut on a rune boundary.
const MaxFactBytes = MaxErrorBytes

// Systems whose dead letters Facts knows.
const (
	SystemSpring     = "spring"      // Spring for Apache Kafka: dead-letter and retry topics
	SystemConnect    = "connect"     // Kafka Connect sinks, KIP-298
	SystemStreams    = "streams"     // Kafka Streams, KIP-1034
	SystemShareGroup = "share_group" // share groups, KIP-1191
	SystemTrendyol   = "trendyol"    // kafka-konsumer and kafka-cronsumer
	SystemWatermill  = "watermill"   // Watermill's poison queue
)

// Fact is one thing that another system wrote into the headers of its dead
// letter. Facts are shown and matched, never believed: no identity and no
// counter comes from them.
type Fact struct {
	System string // System* constants
	Name   string // what it is about, the same word for all systems: original_topic, exception_class, …
	Header string // the key of the header that says so
	// Value is text, at most MaxFactBytes; integers are decimal, times ms since
	// epoch. It is valid UTF-8 and otherwise as it was written: line breaks and
	// control characters included.
	Value string
	// FreeText: an exception's message. It can hold customers' data, so it belongs
	// where recon-error does: no log, metric or notification.
	FreeText bool
	// Problem says, in constant words, why the header's bytes are not what its
	// system writes; empty if they are. Then Value is empty or mended, and proves nothing.
	Problem string
}

// shape is how a system writes a value.
type shape uint8

const (
	shapeText     shape = iota
	shapeFree           // text of an exception
	shapeDecimal        // digits
	shapeNanos          // digits, ns since epoch
	shapeInt32          // 4 bytes, big endian
	shapeInt64          // 8 bytes, big endian
	shapeBig            // Java's BigInteger.toByteArray: two's complement, big endian, no longer than needed
	shapeAttempts       // 4 bytes, big endian, or the 1 byte of old versions: Spring reads both
)

type knownHeader struct {
	system, name string
	shape        shape
}

const factTimestamp = "original_timestamp"

// knownHeaders is every header that becomes a fact. Stack traces are left out on
// purpose: they are long, and their first line is the message again. The versions
// whose records were seen are in docs/foreign.md.
var knownHeaders = map[string]knownHeader{
	"kafka_dlt-original-topic":          {SystemSpring, "original_topic", shapeText},
	"kafka_dlt-original-partition":      {SystemSpring, "original_partition", shapeInt32},
	"kafka_dlt-original-offset":         {SystemSpring, "original_offset", shapeInt64},
	"kafka_dlt-original-timestamp":      {SystemSpring, factTimestamp, shapeInt64},
	"kafka_dlt-original-timestamp-type": {SystemSpring, "original_timestamp_type", shapeText},
	"kafka_dlt-original-consumer-group": {SystemSpring, "original_group", shapeText},
	"kafka_dlt-exception-fqcn":          {SystemSpring, "exception_class", shapeText},
	"kafka_dlt-exception-cause-fqcn":    {SystemSpring, "cause_class", shapeText},
	"kafka_dlt-exception-message":       {SystemSpring, "message", shapeFree},
	"kafka_dlt-key-exception-fqcn":      {SystemSpring, "key_exception_class", shapeText},
	"kafka_dlt-key-exception-message":   {SystemSpring, "key_message", shapeFree},

	"kafka_original-topic":           {SystemSpring, "original_topic", shapeText},
	"kafka_original-partition":       {SystemSpring, "original_partition", shapeInt32},
	"kafka_original-offset":          {SystemSpring, "original_offset", shapeInt64},
	"kafka_original-timestamp":       {SystemSpring, factTimestamp, shapeInt64},
	"kafka_original-timestamp-type":  {SystemSpring, "original_timestamp_type", shapeText},
	"kafka_original-consumer-group":  {SystemSpring, "original_group", shapeText},
	"kafka_exception-fqcn":           {SystemSpring, "exception_class", shapeText},
	"kafka_exception-cause-fqcn":     {SystemSpring, "cause_class", shapeText},
	"kafka_exception-message":        {SystemSpring, "message", shapeFree},
	"kafka_key-exception-fqcn":       {SystemSpring, "key_exception_class", shapeText},
	"kafka_key-exception-message":    {SystemSpring, "key_message", shapeFree},
	"kafka_deliveryAttempt":          {SystemSpring, "delivery_attempt", shapeInt32},
	"retry_topic-attempts":           {SystemSpring, "attempts", shapeAttempts},
	"retry_topic-backoff-timestamp":  {SystemSpring, "backoff_timestamp", shapeBig},
	"retry_topic-original-timestamp": {SystemSpring, factTimestamp, shapeBig},

	"__connect.errors.topic":                {SystemConnect, "original_topic", shapeText},
	"__connect.errors.partition":            {SystemConnect, "original_partition", shapeDecimal},
	"__connect.errors.offset":               {SystemConnect, "original_offset", shapeDecimal},
	"__connect.errors.connector.name":       {SystemConnect, "connector", shapeText},
	"__connect.errors.task.id":              {SystemConnect, "task", shapeDecimal},
	"__connect.errors.stage":                {SystemConnect, "stage", shapeText},
	"__connect.errors.class.name":           {SystemConnect, "executing_class", shapeText},
	"__connect.errors.exception.class.name": {SystemConnect, "exception_class", shapeText},
	"__connect.errors.exception.message":    {SystemConnect, "message", shapeFree},

	"__streams.errors.topic":     {SystemStreams, "original_topic", shapeText},
	"__streams.errors.partition": {SystemStreams, "original_partition", shapeDecimal},
	"__streams.errors.offset":    {SystemStreams, "original_offset", shapeDecimal},
	"__streams.errors.exception": {SystemStreams, "exception_class", shapeText},
	"__streams.errors.message":   {SystemStreams, "message", shapeFree},

	"__dlq.errors.topic":          {SystemShareGroup, "original_topic", shapeText},
	"__dlq.errors.partition":      {SystemShareGroup, "original_partition", shapeDecimal},
	"__dlq.errors.offset":         {SystemShareGroup, "original_offset", shapeDecimal},
	"__dlq.errors.group":          {SystemShareGroup, "original_group", shapeText},
	"__dlq.errors.delivery.count": {SystemShareGroup, "attempts", shapeDecimal},
	"__dlq.errors.message":        {SystemShareGroup, "message", shapeFree},

	"x-retry-count":         {SystemTrendyol, "retries", shapeDecimal},
	"x-retry-attempt-count": {SystemTrendyol, "backoff_rounds", shapeDecimal},
	"x-produce-time":        {SystemTrendyol, "produced_timestamp", shapeNanos},
	"x-error-message":       {SystemTrendyol, "message", shapeFree},

	"topic_poisoned":      {SystemWatermill, "original_topic", shapeText},
	"handler_poisoned":    {SystemWatermill, "handler", shapeText},
	"subscriber_poisoned": {SystemWatermill, "subscriber", shapeText},
	"reason_poisoned":     {SystemWatermill, "message", shapeFree},
}

// Facts is what the headers of a record say about its way through other systems,
// in their order, one fact for each known header at most: see better for which of
// several counts. It is nil, with no allocation, where no header is known.
func Facts(headers []Header) []Fact {
	var facts []Fact
	for _, h := range headers {
		if _, ok := knownHeaders[h.Key]; !ok {
			continue
		}
		f := factOf(h)
		i := slices.IndexFunc(facts, func(old Fact) bool { return old.Header == h.Key })
		switch {
		case i < 0:
			facts = append(facts, f)
		case better(f, facts[i]):
			facts[i] = f
		}
	}
	return facts
}

// HeaderText is the value of a header as Facts shows it, and of any other header
// as text, for rules to match: at most MaxFactBytes. ok is false where there is no
// such header, or none that can be read. The text borrows the header's bytes.
func HeaderText(headers []Header, key string) (text string, ok bool) {
	best := Fact{Problem: "missing"}
	for _, h := range headers {
		if h.Key == key {
			if f := factOf(h); better(f, best) {
				best = f
			}
		}
	}
	return best.Value, best.Problem == ""
}

// better says whether a fact replaces that of a header before it with the same
// key. Most systems append theirs with each hop. So what is original is said by the
// first one, and everything else by the last; one that cannot be read says nothing.
func better(f, old Fact) bool {
	if f.Problem != "" {
		return false
	}
	return old.Problem != "" || !strings.HasPrefix(f.Name, "original_")
}

// factOf is what one header says.
func factOf(h Header) Fact {
	k := knownHeaders[h.Key] // else text
	f := Fact{System: k.system, Name: k.name, Header: h.Key, FreeText: k.shape == shapeFree}
	switch {
	case h.Value == nil:
		f.Problem = "null"
	case k.shape == shapeText || k.shape == shapeFree:
		f.Value = cutRune(borrow(h.Value), MaxFactBytes)
		if !utf8.ValidString(f.Value) {
			f.Value, f.Problem = cutText(f.Value, MaxFactBytes), "not UTF-8"
		}
	default:
		var n int64
		if n, f.Problem = k.shape.integer(h.Value); f.Problem == "" {
			f.Value = strconv.FormatInt(n, 10)
		}
	}
	return f
}

// maxDecimal is the length of the least int64 in digits.
const maxDecimal = len("-9223372036854775808")

// integer reads a number. A length that its system does not write is not guessed at.
func (s shape) integer(v []byte) (n int64, problem string) {
	switch {
	case s == shapeDecimal || s == shapeNanos:
		if len(v) > maxDecimal { // an error of strconv would copy it
			return 0, "not a whole number"
		}
		n, err := strconv.ParseInt(borrow(v), 10, 64)
		if err != nil {
			return 0, "not a whole number"
		}
		if s == shapeNanos {
			n /= int64(time.Millisecond)
		}
		return n, ""
	case s == shapeInt32 || s == shapeAttempts && len(v) != 1:
		if len(v) != 4 {
			return 0, "not an integer of 4 bytes"
		}
		return int64(int32(binary.BigEndian.Uint32(v))), ""
	case s == shapeInt64:
		if len(v) != 8 {
			return 0, "not an integer of 8 bytes"
		}
		return int64(binary.BigEndian.Uint64(v)), ""
	}
	if len(v) == 0 || len(v) > 8 {
		return 0, "not an integer of 1 to 8 bytes"
	}
	n = int64(int8(v[0]))
	for _, b := range v[1:] {
		n = n<<8 | int64(b)
	}
	return n, ""
}

// rawValues stands in for parseValue where the value is opaque: all that is
// known is when the record first was in a topic, by the first time that a header
// gives. A time that no value could have is passed over.
func rawValues(headers []Header, now int64) values {
	for _, h := range headers {
		k := knownHeaders[h.Key]
		if k.name != factTimestamp {
			continue
		}
		if t, problem := k.shape.integer(h.Value); problem == "" && year2000 <= t && t <= now+maxAhead {
			return values{enqueued: t}
		}
	}
	return values{}
}
