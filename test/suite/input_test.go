package suite

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/audit"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

// malformed are the values that break the wire contract, each with what its
// recon-error must say of where. The name is the record's key.
func malformed() []struct{ name, value, where string } {
	ahead := time.Now().Add(25 * time.Hour).UnixMilli()
	record := func(fields string) string {
		return `{"discrepancy_id":"bad","category":"amount_differs","context":{}` + fields + `}`
	}
	return []struct{ name, value, where string }{
		{"not JSON", "amount differs: 12.00", "at byte 0"},
		{"cut off", `{"discrepancy_id":"bad","categ`, "at byte 30"},
		{"an array", "[1,2,3]", "at byte 0"},
		{"not UTF-8", "{\"discrepancy_id\":\"\xff\xfe\"}", "at byte 19"},
		{"id of the wrong type", `{"discrepancy_id":7,"category":"a","context":{},"enqueued_ms":0}`, "field discrepancy_id"},
		{"category of the wrong type", `{"discrepancy_id":"bad","category":{},"context":{},"enqueued_ms":0}`, "field category"},
		{"context of the wrong type", `{"discrepancy_id":"bad","category":"a","context":"s3cr3t-x","enqueued_ms":0}`, "field context"},
		{"enqueued_ms of the wrong type", record(`,"enqueued_ms":"yesterday"`), "field enqueued_ms"},
		{"attempts of the wrong type", record(`,"enqueued_ms":0,"attempts":"3"`), "field attempts"},
		{"no id", `{"category":"a","context":{},"enqueued_ms":0}`, "field discrepancy_id: missing"},
		{"no category", `{"discrepancy_id":"bad","context":{},"enqueued_ms":0}`, "field category: missing"},
		{"no context", `{"discrepancy_id":"bad","category":"a","enqueued_ms":0}`, "field context: missing"},
		{"no enqueued_ms", record(""), "field enqueued_ms: missing"},
		{"duplicate keys", record(`,"enqueued_ms":0,"discrepancy_id":"other"`), "field discrepancy_id"},
		{"NaN", record(`,"enqueued_ms":NaN`), "at byte 79"},
		{"NaN in the context", `{"discrepancy_id":"bad","category":"a","context":{"x":NaN},"enqueued_ms":0}`, "at byte 54"},
		{"deep nesting", record(`,"enqueued_ms":0,"x":` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000)), "at byte"},
		{"0 bytes", "", "empty value"},
		{"negative attempts", record(`,"enqueued_ms":0,"attempts":-1`), "field attempts"},
		{"absurd attempts", record(`,"enqueued_ms":0,"attempts":99999999999999999999`), "field attempts"},
		{"fractional attempts", record(`,"enqueued_ms":0,"attempts":1.5`), "field attempts"},
		{"max_attempts 0", record(`,"enqueued_ms":0,"max_attempts":0`), "field max_attempts"},
		{"enqueued before 2000", record(`,"enqueued_ms":946684799999`), "field enqueued_ms"},
		{"enqueued in seconds", record(`,"enqueued_ms":1750000000`), "field enqueued_ms"},
		{"negative enqueued_ms", record(`,"enqueued_ms":-1`), "field enqueued_ms"},
		{"enqueued more than a day ahead", record(fmt.Sprintf(`,"enqueued_ms":%d`, ahead)), "field enqueued_ms"},
	}
}

func TestBadInputGoesToPoisonAsItIsAndStopsNothing(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		t.Parallel()
		x := newBench(t, b, 1, 3, second, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
			if !strings.HasPrefix(r.DiscrepancyID, "good") {
				t.Errorf("the handler was called for %q", r.Key)
			}
			return resolved
		})
		bad := malformed()
		var records []*kgo.Record
		for i, m := range bad {
			records = append(records,
				&kgo.Record{Topic: x.names.Source, Key: fmt.Appendf(nil, "good-%d", i), Value: value(fmt.Sprintf("good-%d", i), "")},
				&kgo.Record{Topic: x.names.Source, Key: []byte(m.name), Value: []byte(m.value), Headers: []kgo.RecordHeader{{Key: "theirs", Value: []byte{0, 0xff}}}})
		}
		records = append(records,
			&kgo.Record{Topic: x.names.Source, Key: []byte("tombstone")}, // null is not empty
			&kgo.Record{Topic: x.names.Source, Key: []byte("good-last"), Value: value("good-last", "")})
		brokers.Produce(t, b, records...)
		w := x.start()
		x.settled(len(records), w)

		if n := w.metric("poison_total", "reason", deadletter.ReasonMalformed); int(n) != len(bad)+1 {
			t.Errorf("poison_total{reason=malformed} is %v, want %d", n, len(bad)+1)
		}
		if n := w.metric("resolved_total"); int(n) != len(bad)+1 {
			t.Errorf("resolved_total is %v, want %d", n, len(bad)+1)
		}
		poison := map[string]*kgo.Record{}
		for _, r := range x.read(x.names.Poison) {
			poison[string(r.Key)] = r
		}
		events := poisonedEvents(x)
		for _, m := range bad {
			r := poison[m.name]
			if r == nil {
				t.Errorf("%s: not in poison", m.name)
				continue
			}
			if !bytes.Equal(r.Value, []byte(m.value)) || r.Value == nil {
				t.Errorf("%s: the value is not what was sent", m.name)
			}
			if header(r, "theirs") != "\x00\xff" {
				t.Errorf("%s: its foreign header is %q", m.name, header(r, "theirs"))
			}
			assertMalformed(t, m.name, r, events, m.where)
		}
		if r := poison["tombstone"]; r == nil || r.Value != nil {
			t.Error("the tombstone is not in poison with a null value")
		} else {
			assertMalformed(t, "tombstone", r, events, "tombstone")
		}
		x.check(true)
	})
}

// poisonedEvents are the reasons of poisoned events by recon-id.
func poisonedEvents(x *bench) map[string]string {
	x.t.Helper()
	reasons := map[string]string{}
	for _, r := range x.read(x.names.Audit) {
		e, err := audit.Parse(r.Value)
		if err != nil {
			x.t.Fatal(err)
		}
		if e.Type == audit.Poisoned {
			reasons[e.RecordID] = e.Reason
		}
	}
	return reasons
}

func assertMalformed(t *testing.T, name string, r *kgo.Record, events map[string]string, where string) {
	t.Helper()
	if reason := header(r, deadletter.HeaderReason); reason != deadletter.ReasonMalformed {
		t.Errorf("%s: %s is %q", name, deadletter.HeaderReason, reason)
	}
	if message := header(r, deadletter.HeaderError); !strings.Contains(message, where) {
		t.Errorf("%s: %s is %q, and does not say %q", name, deadletter.HeaderError, message, where)
	}
	if class := header(r, deadletter.HeaderErrorClass); class != deadletter.ReasonMalformed {
		t.Errorf("%s: %s is %q", name, deadletter.HeaderErrorClass, class)
	}
	if reason := events[header(r, deadletter.HeaderID)]; reason != deadletter.ReasonMalformed {
		t.Errorf("%s: the reason of its poisoned event is %q", name, reason)
	}
}

func TestUnusualButLegalRecordsKeepTheirBytesOnEveryCopy(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		t.Parallel()
		x := newBench(t, b, 3, 2, []time.Duration{100 * time.Millisecond}, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
			if r.DiscrepancyID == "good" {
				return resolved
			}
			return failing // each gets a retry copy and a poison copy
		})
		x.target[0].Breaker.Threshold = 64
		foreign := []kgo.RecordHeader{
			{Key: "null", Value: nil}, {Key: "empty", Value: []byte{}}, {Key: "binary", Value: []byte{0, 0xff, 0xfe, '\n'}},
			{Key: "twice", Value: []byte("1")}, {Key: "twice", Value: []byte("2")}, {Key: "twice", Value: []byte("1")},
			{Key: "", Value: []byte("no name")}, {Key: "Recon-Attempt", Value: []byte("not ours: the case differs")},
		}
		forged := []kgo.RecordHeader{
			{Key: deadletter.HeaderID, Value: []byte("00000000000000000000000000000000")},
			{Key: "theirs", Value: []byte("stays")},
			{Key: deadletter.HeaderAttempt, Value: []byte("999")},
			{Key: deadletter.HeaderNotBefore, Value: []byte("99999999999999")},
			{Key: deadletter.HeaderReason, Value: []byte("permanent")},
			{Key: deadletter.HeaderMasked, Value: []byte("true")},
			{Key: deadletter.HeaderRedrive, Value: []byte("garbage")},
			{Key: "recon-unheard-of", Value: nil},
		}
		now := time.Now()
		source := func(id, fields string) *kgo.Record {
			return &kgo.Record{Topic: x.names.Source, Key: []byte(id), Value: value(id, fields)}
		}
		noKey, emptyKey, headers, lies, clock := source("null key", ""), source("empty key", ""), source("foreign headers", ""), source("forged headers", ""), source("timestamp ahead", "")
		noKey.Key, emptyKey.Key = nil, []byte{}
		headers.Headers, lies.Headers = foreign, forged
		clock.Timestamp = now.Add(10 * time.Minute)
		enqueuedAhead := &kgo.Record{Topic: x.names.Source, Key: []byte("enqueued ahead"), Value: fmt.Appendf(nil,
			" {\t\"discrepancy_id\" : \"enqueued ahead\", \"category\":\"a\\u006d\", \"context\":{\"n\":1.0e+2,\"n\":2}, \"enqueued_ms\":%d,\n\"later\":[null]} \n", now.Add(time.Hour).UnixMilli())}
		records := []*kgo.Record{noKey, emptyKey, headers, lies, clock, enqueuedAhead, source("good", "")}
		brokers.Produce(t, b, records...)
		w := x.start()
		x.settled(len(records), w)

		for what, want := range map[string]float64{deadletter.NoteForged: 1, deadletter.NoteEnqueuedAhead: 1} {
			if n := w.metric("recon_dlq_repaired_records_total", "what", what); n != want {
				t.Errorf("recon_dlq_repaired_records_total{what=%s} is %v, want %v", what, n, want)
			}
		}
		copies := x.read(append(x.names.Tiers(), x.names.Poison)...)
		if len(copies) != 2*(len(records)-1) {
			t.Fatalf("%d copies, want a retry and a poison copy of each record but the good one", len(copies))
		}
		for _, c := range copies {
			id := discrepancy(c)
			switch id {
			case "null key":
				if c.Key != nil {
					t.Errorf("%s: the key is %q", c.Topic, c.Key)
				}
			case "empty key":
				if c.Key == nil || len(c.Key) > 0 {
					t.Errorf("%s: the empty key is %v", c.Topic, c.Key)
				}
			case "foreign headers":
				if got := c.Headers[:min(len(foreign), len(c.Headers))]; !slices.EqualFunc(got, foreign, sameHeader) {
					t.Errorf("%s: foreign headers are %q", c.Topic, got)
				}
			case "forged headers":
				if header(c, "theirs") != "stays" || header(c, deadletter.HeaderID) == "00000000000000000000000000000000" ||
					header(c, deadletter.HeaderMasked) != "" || header(c, deadletter.HeaderRedrive) != "" || hasHeader(c, "recon-unheard-of") {
					t.Errorf("%s: headers are %q", c.Topic, c.Headers)
				}
			}
			want := "1"
			if c.Topic == x.names.Poison {
				want = "2"
			}
			if n := header(c, deadletter.HeaderAttempt); n != want {
				t.Errorf("%s in %s: recon-attempt is %s, want %s", id, c.Topic, n, want)
			}
			for _, h := range c.Headers { // replaced, never appended
				if strings.HasPrefix(h.Key, deadletter.HeaderPrefix) && count(c, h.Key) != 1 {
					t.Errorf("%s in %s: %d headers %s", id, c.Topic, count(c, h.Key), h.Key)
				}
			}
		}
		x.check(true)
	})
}

func sameHeader(a, b kgo.RecordHeader) bool {
	return a.Key == b.Key && bytes.Equal(a.Value, b.Value) && (a.Value == nil) == (b.Value == nil)
}

func hasHeader(r *kgo.Record, name string) bool { return count(r, name) > 0 }

func count(r *kgo.Record, name string) (n int) {
	for _, h := range r.Headers {
		if h.Key == name {
			n++
		}
	}
	return n
}
