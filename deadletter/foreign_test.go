package deadletter_test

import (
	"bytes"
	"math/big"
	"os"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

func binaryHeader(key string, value ...byte) deadletter.Header {
	return deadletter.Header{Key: key, Value: value}
}

// fact is the only fact of these headers.
func fact(t *testing.T, headers ...deadletter.Header) deadletter.Fact {
	t.Helper()
	facts := deadletter.Facts(headers)
	if len(facts) != 1 {
		t.Fatalf("%q make %d facts, want 1: %+v", headers, len(facts), facts)
	}
	return facts[0]
}

func TestHeadersOfOtherSystemsBecomeFacts(t *testing.T) {
	for _, tc := range []struct {
		header              deadletter.Header
		system, name, value string
	}{
		{header("kafka_dlt-original-topic", "orders"), "spring", "original_topic", "orders"},
		{binaryHeader("kafka_dlt-original-partition", 0, 0, 1, 2), "spring", "original_partition", "258"},
		{binaryHeader("kafka_original-partition", 0xff, 0xff, 0xff, 0xff), "spring", "original_partition", "-1"},
		{binaryHeader("kafka_dlt-original-offset", 0, 0, 0, 1, 0, 0, 0, 0), "spring", "original_offset", "4294967296"},
		{binaryHeader("kafka_original-timestamp", 0, 0, 1, 0x9a, 0xd7, 0x35, 0x84, 0), "spring", "original_timestamp", "1764547200000"},
		{binaryHeader("retry_topic-original-timestamp", 1, 0x9a, 0xd7, 0x35, 0x84, 0), "spring", "original_timestamp", "1764547200000"},
		{binaryHeader("retry_topic-backoff-timestamp", 0xff), "spring", "backoff_timestamp", "-1"},
		{binaryHeader("retry_topic-attempts", 0, 0, 0, 3), "spring", "attempts", "3"},
		{binaryHeader("retry_topic-attempts", 3), "spring", "attempts", "3"},
		{binaryHeader("kafka_deliveryAttempt", 0, 0, 0, 2), "spring", "delivery_attempt", "2"},
		{header("__connect.errors.offset", "42"), "connect", "original_offset", "42"},
		{header("__connect.errors.stage", "TASK_PUT"), "connect", "stage", "TASK_PUT"},
		{header("__streams.errors.exception", "java.lang.ArithmeticException"), "streams", "exception_class", "java.lang.ArithmeticException"},
		{header("__dlq.errors.delivery.count", "5"), "share_group", "attempts", "5"},
		{header("x-retry-count", "3"), "trendyol", "retries", "3"},
		{header("x-produce-time", "1764547200000123456"), "trendyol", "produced_timestamp", "1764547200000"},
		{header("handler_poisoned", ""), "watermill", "handler", ""},
	} {
		want := deadletter.Fact{System: tc.system, Name: tc.name, Header: tc.header.Key, Value: tc.value}
		if got := fact(t, tc.header); got != want {
			t.Errorf("%s = %q is\n     %+v\nwant %+v", tc.header.Key, tc.header.Value, got, want)
		}
		if text, ok := deadletter.HeaderText([]deadletter.Header{tc.header}, tc.header.Key); !ok || text != tc.value {
			t.Errorf("%s matches as %q, %v", tc.header.Key, text, ok)
		}
	}
}

func TestWhatASystemDoesNotWriteIsMarkedAndNotGuessed(t *testing.T) {
	for _, tc := range []struct {
		header  deadletter.Header
		problem string
	}{
		{deadletter.Header{Key: "kafka_dlt-original-topic"}, "null"},
		{deadletter.Header{Key: "kafka_dlt-original-offset"}, "null"},
		{header("kafka_dlt-original-partition", ""), "not an integer of 4 bytes"},
		{header("kafka_dlt-original-partition", "7"), "not an integer of 4 bytes"},
		{header("kafka_dlt-original-partition", "12345678"), "not an integer of 4 bytes"},
		{header("kafka_dlt-original-offset", "1234"), "not an integer of 8 bytes"},
		{header("kafka_deliveryAttempt", "2"), "not an integer of 4 bytes"},
		{header("retry_topic-attempts", "10"), "not an integer of 4 bytes"},
		{header("retry_topic-original-timestamp", ""), "not an integer of 1 to 8 bytes"},
		{header("retry_topic-original-timestamp", "1764547200000"), "not an integer of 1 to 8 bytes"},
		{header("__connect.errors.offset", "1e3"), "not a whole number"},
		{header("__connect.errors.offset", ""), "not a whole number"},
		{header("__connect.errors.offset", "9223372036854775808"), "not a whole number"},
		{header("x-retry-count", strings.Repeat("1", 1<<20)), "not a whole number"},
		{binaryHeader("__dlq.errors.partition", 0, 0, 0, 1), "not a whole number"},
	} {
		if got := fact(t, tc.header); got.Problem != tc.problem || got.Value != "" {
			t.Errorf("%s = %.20q: problem %q, value %q, want %q", tc.header.Key, tc.header.Value, got.Problem, got.Value, tc.problem)
		}
		if text, ok := deadletter.HeaderText([]deadletter.Header{tc.header}, tc.header.Key); ok {
			t.Errorf("%s = %.20q matches as %q", tc.header.Key, tc.header.Value, text)
		}
	}
	if got := fact(t, header("reason_poisoned", "no \xff account")); got.Value != "no \uFFFD account" || got.Problem != "not UTF-8" {
		t.Errorf("invalid UTF-8 becomes %q, problem %q", got.Value, got.Problem)
	}
}

func TestTheFirstHeaderSaysWhatIsOriginalAndTheLastOneTheRest(t *testing.T) {
	hops := []deadletter.Header{
		header("kafka_dlt-original-topic", "orders"), binaryHeader("retry_topic-attempts", 0, 0, 0, 2),
		header("kafka_dlt-original-topic", "orders-dlt"), binaryHeader("retry_topic-attempts", 0, 0, 0, 3),
	}
	unreadable := []deadletter.Header{{Key: "kafka_dlt-original-topic"}, {Key: "retry_topic-attempts"}}
	for name, headers := range map[string][]deadletter.Header{
		"as written":                  hops,
		"with unreadable ones before": append(unreadable[:2:2], hops...),
		"with unreadable ones behind": append(hops[:4:4], unreadable...),
	} {
		facts := deadletter.Facts(headers)
		if len(facts) != 2 || facts[0].Value != "orders" || facts[1].Value != "3" {
			t.Errorf("%s: %+v", name, facts)
		}
		topic, _ := deadletter.HeaderText(headers, "kafka_dlt-original-topic")
		attempts, _ := deadletter.HeaderText(headers, "retry_topic-attempts")
		if topic != "orders" || attempts != "3" {
			t.Errorf("%s: rules see %q and %q", name, topic, attempts)
		}
	}
}

func TestManyHeadersAndLongOnesMakeFewAndShortFacts(t *testing.T) {
	headers := make([]deadletter.Header, 0, 100_000)
	for range cap(headers) / 2 {
		headers = append(headers, header("x-retry-count", "1"), header("x-error-message", strings.Repeat("ä", 2000)))
	}
	facts := deadletter.Facts(headers)
	if len(facts) != 2 {
		t.Fatalf("%d facts", len(facts))
	}
	if want := strings.Repeat("ä", deadletter.MaxFactBytes/2); facts[1].Value != want || facts[1].Problem != "" {
		t.Errorf("the message is %d bytes, problem %q", len(facts[1].Value), facts[1].Problem)
	}
	if text, ok := deadletter.HeaderText([]deadletter.Header{header("x", "y"+strings.Repeat("ä", 2000))}, "x"); !ok || len(text) != deadletter.MaxFactBytes-1 {
		t.Errorf("a header of nobody's matches with %d bytes, %v", len(text), ok)
	}
}

func TestMessagesAreFreeTextAndStackTracesAreNoFacts(t *testing.T) {
	for _, key := range []string{
		"kafka_dlt-exception-message", "kafka_dlt-key-exception-message", "kafka_exception-message", "kafka_key-exception-message",
		"__connect.errors.exception.message", "__streams.errors.message", "__dlq.errors.message", "x-error-message", "reason_poisoned",
	} {
		if f := fact(t, header(key, "card 4111")); !f.FreeText {
			t.Errorf("%s is not free text: %+v", key, f)
		}
	}
	for _, key := range []string{
		"kafka_dlt-exception-stacktrace", "kafka_dlt-key-exception-stacktrace", "kafka_exception-stacktrace", "kafka_key-exception-stacktrace",
		"__connect.errors.exception.stacktrace", "__streams.errors.stacktrace",
	} {
		if facts := deadletter.Facts([]deadletter.Header{header(key, "at Ledger.java:17")}); facts != nil {
			t.Errorf("%s is a fact: %+v", key, facts)
		}
	}
}

func TestRulesMatchAHeaderThatNobodyKnowsAsText(t *testing.T) {
	headers := []deadletter.Header{header("tenant", "red"), header("tenant", "blue"), {Key: "null"}, header("empty", ""), header("bad", "\xff")}
	for key, want := range map[string]string{"tenant": "blue", "empty": ""} {
		if text, ok := deadletter.HeaderText(headers, key); !ok || text != want {
			t.Errorf("%s matches as %q, %v, want %q", key, text, ok, want)
		}
	}
	for _, key := range []string{"null", "bad", "missing"} {
		if text, ok := deadletter.HeaderText(headers, key); ok {
			t.Errorf("%s matches as %q", key, text)
		}
	}
}

func TestARecordWithoutForeignFactsAllocatesNothing(t *testing.T) {
	if n := testing.AllocsPerRun(100, func() {
		if deadletter.Facts(unknownHeaders) != nil {
			t.Error("facts out of nothing")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestTheGuideHasEachHeaderAndItsFact(t *testing.T) {
	guide, err := os.ReadFile("../docs/foreign.md")
	if err != nil {
		t.Fatal(err)
	}
	word := regexp.MustCompile("`([^`]+)`")
	told := map[string]string{}
	for line := range strings.Lines(string(guide)) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || !strings.HasPrefix(cells[3], " `") {
			continue
		}
		name := word.FindStringSubmatch(cells[3])[1]
		if strings.Contains(cells[3], "(free text)") {
			name += ", free text"
		}
		for _, key := range word.FindAllStringSubmatch(cells[1], -1) {
			told[key[1]] = name
		}
	}
	for _, key := range deadletter.KnownHeaders() {
		f := fact(t, header(key, ""))
		name := f.Name
		if f.FreeText {
			name += ", free text"
		}
		if told[key] != name {
			t.Errorf("docs/foreign.md says %q of %s, which is %q", told[key], key, name)
		}
		delete(told, key)
	}
	for key := range told {
		t.Errorf("docs/foreign.md tells of %s, which is no fact", key)
	}
}

// readRaw reads a value as it arrives on somebody else's dead-letter topic.
func readRaw(t *testing.T, value []byte, headers ...deadletter.Header) deadletter.Record {
	t.Helper()
	o := options(deadletter.Source)
	o.Raw = true
	r, err := deadletter.Read(deadletter.Message{Place: place, Timestamp: arrived, Key: []byte("acct-17"), Value: value, Headers: headers}, o)
	if err != nil {
		t.Fatalf("%q is malformed: %v", value, err)
	}
	return r
}

func TestARawRecordIsReadWhateverItsValueIs(t *testing.T) {
	asJSON, err := readSource([]byte(plainValue))
	if err != nil {
		t.Fatal(err)
	}
	for _, value := range [][]byte{nil, {}, {0, 0xff}, []byte("not JSON"), []byte(`{"discrepancy_id":"r-1","category":"x","attempts":4,"max_attempts":2}`)} {
		r := readRaw(t, value, binaryHeader("retry_topic-attempts", 0, 0, 0, 9), header("x-retry-count", "9"))
		if r.ID != asJSON.ID || r.Origin != asJSON.Origin {
			t.Errorf("%q is %s from %s, want %s from %s", value, r.ID, r.Origin, asJSON.ID, asJSON.Origin)
		}
		if r.DiscrepancyID != "" || r.Category != "" || r.Attempt != 0 || r.MaxAttempts != 0 {
			t.Errorf("%q is believed: %+v", value, r)
		}
		if !sameBytes(r.Value, value) || r.Enqueued != arrived || len(r.Foreign) != 2 {
			t.Errorf("%q: %+v", value, r)
		}
	}
}

func TestARawRecordWasEnqueuedWhenItsHeadersSay(t *testing.T) {
	big := func(ms int64) deadletter.Header {
		return deadletter.Header{Key: "retry_topic-original-timestamp", Value: big.NewInt(ms).Bytes()}
	}
	for name, tc := range map[string]struct {
		headers []deadletter.Header
		want    int64
		notes   []string
	}{
		"no header":              {nil, arrived, nil},
		"the first one":          {[]deadletter.Header{big(startMS - dayMS), big(startMS)}, startMS - dayMS, nil},
		"the first readable one": {[]deadletter.Header{header("kafka_original-timestamp", "soon"), big(startMS)}, startMS, nil},
		"no timestamp (-1)":      {[]deadletter.Header{binaryHeader("kafka_dlt-original-timestamp", bytes.Repeat([]byte{0xff}, 8)...)}, arrived, nil},
		"before 2000":            {[]deadletter.Header{big(1)}, arrived, nil},
		"a little ahead":         {[]deadletter.Header{big(readAt.UnixMilli() + dayMS)}, arrived, []string{deadletter.NoteEnqueuedAhead}},
		"far ahead":              {[]deadletter.Header{big(readAt.UnixMilli() + dayMS + 1)}, arrived, nil},
		"when it was sent last":  {[]deadletter.Header{header("x-produce-time", "1764547200000000000")}, arrived, nil},
	} {
		r := readRaw(t, nil, tc.headers...)
		if r.Enqueued != tc.want {
			t.Errorf("%s: enqueued %d, want %d", name, r.Enqueued, tc.want)
		}
		wantNotes(t, r, tc.notes...)
	}
}

func TestTheCopyOfARawRecordIsReadAsOne(t *testing.T) {
	r := readRaw(t, []byte("not JSON"), binaryHeader("retry_topic-original-timestamp", 1, 0x9a, 0xd7, 0x35, 0x84, 0))
	r.Attempt, r.NotBefore = 1, arrived+1
	o := options(deadletter.Tier)
	o.Raw = true
	again, err := deadletter.Read(deadletter.Message{Place: tier, Timestamp: arrived, Key: r.Key, Value: r.Value, Headers: r.Headers()}, o)
	if err != nil {
		t.Fatal(err)
	}
	wantControl(t, again, r)
	if !sameHeaders(again.Foreign, r.Foreign) || !sameBytes(again.Value, r.Value) {
		t.Errorf("the copy is %+v", again)
	}
}

// FuzzForeign reads any headers as those of a raw record. A line is "name: value",
// without ": " the value is null.
func FuzzForeign(f *testing.F) {
	f.Add("kafka_dlt-original-offset: \x00\x00\x00\x00\x00\x00\x00\x2a\nx-error-message: a\nx-error-message: \xff")
	f.Add("retry_topic-original-timestamp: \x01\x9a\xd7\x35\x84\x00\nretry_topic-attempts: \x03\n__connect.errors.partition")
	f.Fuzz(func(t *testing.T, lines string) {
		headers := parseHeaders(lines)
		seen := map[string]bool{}
		for _, fact := range deadletter.Facts(headers) {
			if seen[fact.Header] {
				t.Errorf("%s makes two facts", fact.Header)
			}
			seen[fact.Header] = true
			if fact.System == "" || fact.Name == "" || !utf8.ValidString(fact.Value) || len(fact.Value) > deadletter.MaxFactBytes {
				t.Errorf("fact %+v", fact)
			}
			text, ok := deadletter.HeaderText(headers, fact.Header)
			if ok != (fact.Problem == "") || ok && text != fact.Value {
				t.Errorf("%s is shown as %q (%s) and matched as %q, %v", fact.Header, fact.Value, fact.Problem, text, ok)
			}
			if fact.Header == "retry_topic-backoff-timestamp" && ok && !isTwosComplement(headers, text) {
				t.Errorf("%s is read as %s", fact.Header, text)
			}
		}
		o := options(deadletter.Source)
		o.Raw = true
		r, err := deadletter.Read(deadletter.Message{Place: place, Timestamp: arrived, Headers: headers}, o)
		if err != nil || r.Enqueued <= 0 || r.Enqueued > arrived || r.Attempt != 0 {
			t.Errorf("%v: %+v", err, r)
		}
	})
}

// isTwosComplement reads the last back-off header that can be read with big numbers.
func isTwosComplement(headers []deadletter.Header, text string) bool {
	want := new(big.Int)
	for _, h := range headers {
		if h.Key == "retry_topic-backoff-timestamp" && 1 <= len(h.Value) && len(h.Value) <= 8 {
			want.SetBytes(h.Value)
			if h.Value[0] >= 0x80 {
				want.Sub(want, new(big.Int).Lsh(big.NewInt(1), uint(8*len(h.Value))))
			}
		}
	}
	return want.String() == text
}

// unknownHeaders are those of an ordinary record.
var unknownHeaders = []deadletter.Header{
	header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), header("content-type", "application/json"),
	header("kafka_messageKey", "acct-17"), header("x-request-id", "17"), header("tenant", "blue"),
}

func BenchmarkFacts(b *testing.B) {
	for name, headers := range map[string][]deadletter.Header{
		"none of 5": unknownHeaders,
		"7 of 7": {
			header("kafka_dlt-original-topic", "orders"), binaryHeader("kafka_dlt-original-partition", 0, 0, 0, 1),
			binaryHeader("kafka_dlt-original-offset", 0, 0, 0, 1, 0, 0, 0, 0), binaryHeader("kafka_dlt-original-timestamp", 0, 0, 1, 0x9a, 0xd7, 0x35, 0x84, 0),
			header("kafka_dlt-exception-fqcn", "java.lang.IllegalStateException"), header("kafka_dlt-exception-cause-fqcn", "java.lang.NullPointerException"),
			header("kafka_dlt-exception-message", "no such account"),
		},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				deadletter.Facts(headers)
			}
		})
	}
}

func BenchmarkHeaderText(b *testing.B) {
	headers := append(unknownHeaders[:5:5], header("kafka_dlt-exception-fqcn", "java.lang.IllegalStateException"))
	b.ReportAllocs()
	for b.Loop() {
		deadletter.HeaderText(headers, "kafka_dlt-exception-fqcn")
	}
}
