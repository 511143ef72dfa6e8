package data_test

import (
	"testing"
	"time"

	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/internal/demo/data"
)

func TestTheSetIsMixedAndAsLargeAsTheDemoPromises(t *testing.T) {
	kinds := map[string]int{}
	hopeless, malformed := 0, 0
	for _, d := range data.Discrepancies() {
		kinds[d.Category]++
		if d.Hopeless {
			hopeless++
		}
		if d.Malformed {
			malformed++
		}
		if len(d.Value) > 600 {
			t.Errorf("%s has %d bytes", d.ID, len(d.Value))
		}
	}
	n := 0
	for _, kind := range []string{data.AmountDiffers, data.MissingInTarget, data.OrphanInTarget, data.StaleVersion} {
		if kinds[kind] < 100 {
			t.Errorf("%d of kind %s, want at least 100", kinds[kind], kind)
		}
		n += kinds[kind]
	}
	if n < 1000 || hopeless != 12 || malformed != 2 {
		t.Errorf("%d can be settled, %d cannot, %d are malformed", n, hopeless, malformed)
	}
}

func TestEachLineIsReadByTheWorkerAsTheSetSays(t *testing.T) {
	for i, d := range data.Discrepancies() {
		m := deadletter.Message{Place: deadletter.Place{Topic: "recon.dlq", Offset: int64(i)}, Timestamp: 1_800_000_000_000, Value: d.Value}
		r, err := deadletter.Read(m, deadletter.ReadOptions{Kind: deadletter.Source, Now: time.UnixMilli(1_800_000_000_000), ClusterID: "c"})
		if (err != nil) != d.Malformed {
			t.Errorf("%s is read with %v, malformed is said to be %v", d.ID, err, d.Malformed)
		}
		if err == nil && (r.DiscrepancyID != d.ID || r.Category != d.Category || r.Enqueued != m.Timestamp) {
			t.Errorf("%s (%s) is read as %s (%s), enqueued %d", d.ID, d.Category, r.DiscrepancyID, r.Category, r.Enqueued)
		}
	}
}

func TestEachEntryIsOfAnAccountAndWhole(t *testing.T) {
	accounts := map[string]string{}
	for _, a := range data.Accounts() {
		accounts[a.ID] = a.Currency
	}
	for _, e := range data.Ledger() {
		if accounts[e.Account] != e.Currency || e.AmountMinor <= 0 || e.Version < 1 || e.State != data.Booked {
			t.Errorf("ledger has %+v", e)
		}
	}
	foreign := 0
	for _, e := range data.Source() {
		if accounts[e.Account] != e.Currency {
			foreign++
		}
		if e.AmountMinor <= 0 || e.Version < 1 || e.State != data.Booked {
			t.Errorf("source has %+v", e)
		}
	}
	if foreign != 12 {
		t.Errorf("%d entries of the source are in a currency that is not held, want the 12 hopeless ones", foreign)
	}
}
