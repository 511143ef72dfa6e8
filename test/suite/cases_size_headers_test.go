package suite

import (
	"crypto/sha256"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/consumer"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/internal/kafka"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

// Faults that other systems' users met, by their id. In this file: sizes. C013,
// which needs no broker, is in package deadletter.

func TestC014AValueThatIsNoJSONIsInPoisonByteForByte(t *testing.T) {
	t.Parallel()
	values := map[string]string{"acct-17": `{"discrepancy_id":"r-1102", broken`, "acct-18": "\xff\xfe{}", "acct-19": ""}
	x := newBench(t, brokers.NewKfake(t), 3, 3, short, always(resolved))
	var records []*kgo.Record
	for key, v := range values {
		records = append(records, &kgo.Record{Topic: x.names.Source, Key: []byte(key), Value: []byte(v)})
	}
	brokers.Produce(t, x.b, records...)
	w := x.start()
	x.settled(3, w)
	w.is(3, "poison_total", "reason", deadletter.ReasonMalformed)
	poison := x.read(x.names.Poison)
	for _, r := range poison {
		if want := values[string(r.Key)]; sha256.Sum256(r.Value) != sha256.Sum256([]byte(want)) || r.Value == nil {
			t.Errorf("%s: poison has %q, want %q", r.Key, r.Value, want)
		}
	}
	if len(poison) != 3 {
		t.Errorf("poison has %d records", len(poison))
	}
	x.check(true)
}

// aside waits until one record is held because its copy does not fit, and
// everything else has its end.
func (x *bench) aside(w *worker, resolved float64) {
	x.t.Helper()
	w.is(1, "recon_dlq_inflight", "state", "oversized")
	w.is(resolved, "resolved_total")
	w.is(1, "dlq_depth")
	w.is(1, "recon_dlq_oversized_total")
	x.unharmed()
}

func TestC016OneOversizedCopyFailsAloneAndNotTheBatch(t *testing.T) {
	t.Parallel()
	x := newBench(t, brokers.NewKfake(t), 1, 3, short, once)
	x.tweak = func(o *consumer.Options) { o.Interval = 50 * time.Millisecond }
	tier := x.names.Tier(short[0])
	// A worker refuses to start with such a tier: so it becomes so afterwards.
	w := x.start()
	<-w.c.Assigned()
	x.set("max.message.bytes", "2000", tier)
	_, err := kafka.Verify(t.Context(), brokers.Client(t, x.b.Opts()...), kafka.Layout{
		Sources: []string{x.names.Source}, RetryPrefix: x.names.Retry, HoldPrefix: x.names.Hold, Poison: x.names.Poison, Audit: x.names.Audit, State: x.names.State, Tiers: short,
	})
	if fault := (*kafka.SettingError)(nil); !errors.As(err, &fault) || !strings.Contains(err.Error(), "max.message.bytes") || !strings.Contains(err.Error(), tier) {
		t.Errorf("the start does not refuse the tier: %v", err)
	}
	// It must not compress: what fits by compression is no fault.
	brokers.ProduceTo(t, x.b,
		&kgo.Record{Topic: x.names.Source, Key: []byte("acct-17"), Value: value("r-1104", "")},
		&kgo.Record{Topic: x.names.Source, Key: []byte("acct-17"), Value: noise("r-1105", 3000)},
		&kgo.Record{Topic: x.names.Source, Key: []byte("acct-17"), Value: value("r-1106", "")})
	x.aside(w, 2)
	var there []string
	for _, r := range x.read(tier) {
		there = append(there, discrepancy(r))
	}
	if strings.Join(there, " ") != "r-1104 r-1106" {
		t.Errorf("the tier has %v", there)
	}
	if n := w.metric("poison_total"); n != 0 {
		t.Errorf("%v records are poisoned", n)
	}
	x.set("max.message.bytes", "100000", tier)
	w.halt()
	w = x.start()
	x.settled(1, w)
	if rep := x.check(true); rep.Retried != 3 || rep.Resolved != 3 {
		t.Errorf("once the tier takes it: %s", rep)
	}
}
