package suite

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

// Faults that other systems' users met, by their id. In this file: bytes. C095,
// which needs no broker, is in package deadletter.

func TestC094ANullHeaderStaysNullAndAnEmptyOneEmpty(t *testing.T) {
	t.Parallel()
	x := newBench(t, brokers.NewKfake(t), 1, 3, short, always(failing))
	x.target[0].Breaker.Threshold = 64
	foreign := []kgo.RecordHeader{{Key: "tenant", Value: nil}, {Key: "note", Value: []byte{}}}
	brokers.Produce(t, x.b, &kgo.Record{Topic: x.names.Source, Key: []byte("acct-17"), Value: value("r-2110", ""), Headers: foreign})
	waits := tiered("r-2111", deadletter.HeaderAttempt, "1", deadletter.HeaderNotBefore, "")
	waits.Headers[1].Value = nil
	x.inTier(short[0], waits)
	w := x.start()
	x.settled(2, w)
	for _, r := range x.read(append(x.names.Tiers(), x.names.Poison)...) {
		if discrepancy(r) != "r-2110" {
			continue
		}
		for i, want := range foreign {
			if !sameHeader(r.Headers[i], want) {
				t.Errorf("%s: header %d is %s=%q, want %q", r.Topic, i, r.Headers[i].Key, r.Headers[i].Value, want.Value)
			}
		}
	}
	w.is(1, "recon_dlq_repaired_records_total", "what", deadletter.NoteNotBeforeBad) // null is missing: due by the tier's delay
	if rep := x.check(true); rep.Retried != 3 || rep.Poisoned != 2 {                 // and no call was early
		t.Errorf("want three copies and two poisoned: %s", rep)
	}
}

func TestC097AMalformedRecordGoesToPoisonWithoutACall(t *testing.T) {
	t.Parallel()
	x, calls := counting(t, 1, short)
	brokers.ProduceTo(t, x.b,
		&kgo.Record{Topic: x.names.Source, Value: []byte("hello")},
		&kgo.Record{Topic: x.names.Source, Key: []byte("k1"), Value: []byte("[1,2"), Headers: []kgo.RecordHeader{{Key: "content-type", Value: []byte("text/plain")}}},
		&kgo.Record{Topic: x.names.Source, Key: []byte("k2"), Value: []byte{}},
		&kgo.Record{Topic: x.names.Source, Key: []byte("behind"), Value: value("behind", "")})
	w := x.start()
	x.settled(4, w)
	if n := calls.of("behind"); n != 4 || len(calls.n) != 1 {
		t.Errorf("the record behind them was called %d times, of %d records", n, len(calls.n))
	}
	events := poisonedEvents(x)
	for _, r := range x.read(x.names.Poison) {
		if discrepancy(r) != "behind" {
			assertMalformed(t, string(r.Value), r, events, "")
		}
	}
	w.is(3, "poison_total", "reason", deadletter.ReasonMalformed)
	x.check(true)
}
