// Command gen writes the demo's files into the current directory. The same seed
// gives the same bytes.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"slices"

	"github.com/recon-dlq/recon-dlq/internal/demo/data"
)

// How many discrepancies there are of each kind, and how many entries agree.
var (
	counts = []struct {
		kind string
		n    int
	}{
		{data.AmountDiffers, 430},
		{data.MissingInTarget, 350},
		{data.OrphanInTarget, 170},
		{data.StaleVersion, 236},
		{data.CurrencyUnknown, 12},
		{cutOff, 1},
		{noContext, 1},
	}
	agreeing = 400
)

// Kinds of lines that are not records.
const (
	cutOff    = "cut off"
	noContext = "without context"
)

func main() {
	files, err := generate()
	if err != nil {
		log.Fatal(err)
	}
	for name, content := range files {
		if err := os.WriteFile(name, content, 0o644); err != nil { //nolint:gosec // files of the repository
			log.Fatal(err)
		}
	}
}

// record is a discrepancy as a classifier writes it.
type record struct {
	ID       string       `json:"discrepancy_id"`
	Category string       `json:"category"`
	Context  data.Context `json:"context"`
	Verdict  verdict      `json:"verdict"`
	// 0: unknown, the arrival counts. A real time would be long past when the demo runs.
	EnqueuedMS int64 `json:"enqueued_ms"`
}

type verdict struct {
	Finding    string  `json:"finding"`
	Confidence float64 `json:"confidence"`
}

// maker draws from one generator; the order of draws is the content of the files.
type maker struct {
	r        *rand.PCG
	accounts []data.Account
}

// below draws a number in [0,n).
func (m *maker) below(n int) int { return int(m.r.Uint64() % uint64(n)) } //nolint:gosec // n is small and positive

func pick[T any](m *maker, of []T) T { return of[m.below(len(of))] }

// generate makes all files, by name.
func generate() (map[string][]byte, error) {
	m := &maker{r: rand.NewPCG(20260301, 4711)}
	m.makeAccounts()

	var kinds []string
	for _, c := range counts {
		for range c.n {
			kinds = append(kinds, c.kind)
		}
	}
	for i := len(kinds) - 1; i > 0; i-- {
		j := m.below(i + 1)
		kinds[i], kinds[j] = kinds[j], kinds[i]
	}

	var source, ledger []data.Entry
	var lines bytes.Buffer
	for i, kind := range kinds {
		rec := m.discrepancy(fmt.Sprintf("%06d", i+1), kind)
		if e := rec.Context.Source; e != nil {
			source = append(source, *e)
		}
		if e := rec.Context.Target; e != nil {
			ledger = append(ledger, *e)
		}
		line, err := json.Marshal(rec)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		switch kind {
		case cutOff: // as a producer that crashed while writing leaves it
			line = line[:len(line)/2]
		case noContext:
			if line, err = json.Marshal(map[string]any{"discrepancy_id": rec.ID, "category": rec.Category, "enqueued_ms": 0}); err != nil {
				return nil, fmt.Errorf("line %d: %w", i+1, err)
			}
		}
		lines.Write(append(line, '\n'))
	}
	for i := range agreeing {
		e := m.entry(fmt.Sprintf("e-%06d", len(kinds)+i+1))
		source = append(source, e)
		ledger = append(ledger, e)
	}

	files := map[string][]byte{"discrepancies.jsonl": lines.Bytes()}
	for name, of := range map[string]any{"accounts.jsonl": m.accounts, "source.jsonl": source, "ledger.jsonl": ledger} {
		content, err := jsonLines(of)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		files[name] = content
	}
	return files, nil
}

func jsonLines(slice any) ([]byte, error) {
	raw, err := json.Marshal(slice)
	if err != nil {
		return nil, err
	}
	var items []json.RawMessage
	if err := json.Unmarshal(raw, &items); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	for _, item := range items {
		b.Write(append(item, '\n'))
	}
	return b.Bytes(), nil
}

func (m *maker) makeAccounts() {
	places := []string{"Harbour", "Linden", "Old Mill", "Kestrel", "Northgate", "Saffron", "Copper Lane", "Bluebell", "Alder", "Quayside"}
	trades := []string{"Bakery", "Books", "Bikes", "Garden Supply", "Optics", "Roasters"}
	for i := range 60 {
		m.accounts = append(m.accounts, data.Account{
			ID:       fmt.Sprintf("merchant-%03d", i+1),
			Merchant: places[i%len(places)] + " " + trades[i/len(places)],
			Currency: pick(m, []string{"EUR", "EUR", "EUR", "GBP", "USD", "SEK", "JPY"}),
		})
	}
}

// entry is a booking as both sides should have it.
func (m *maker) entry(id string) data.Entry {
	a := pick(m, m.accounts)
	amount := int64(150 + m.below(9_850)) // small sales are many
	if m.below(10) == 0 {
		amount = int64(10_000 + m.below(2_490_000))
	}
	return data.Entry{ID: id, Account: a.ID, AmountMinor: amount, Currency: a.Currency, Version: int64(1 + m.below(4)), State: data.Booked}
}

// discrepancy is the record with number n: what the source has, and what went wrong in the target.
func (m *maker) discrepancy(n, kind string) record {
	want := m.entry("e-" + n)
	rec := record{ID: "d-" + n, Category: kind}
	rec.Context.Run = fmt.Sprintf("run-2026-%02d-%02d", 1+m.below(3), 1+m.below(28))
	rec.Context.Source = &want
	rec.Verdict.Confidence = float64(70+m.below(30)) / 100
	have := want
	switch kind {
	case data.MissingInTarget:
		rec.Verdict.Finding = pick(m, []string{"late_file", "rejected_batch", "lost_event"})
		return rec
	case data.OrphanInTarget:
		rec.Verdict.Finding = pick(m, []string{"booked_twice", "cancelled_at_source"})
		rec.Context.Source, rec.Context.Target = nil, &have
		return rec
	case data.StaleVersion:
		want.Version += int64(1 + m.below(3))
		want.AmountMinor += int64(m.below(4_000))
		rec.Verdict.Finding = "update_not_delivered"
	case data.CurrencyUnknown:
		// Testing and fund codes: no account holds them.
		want.Currency = pick(m, []string{"XTS", "XUA", "XSU"})
		rec.Verdict.Finding = "currency_not_held"
		return rec
	default: // amounts differ, also in what is then made unreadable
		rec.Category = data.AmountDiffers
		have.AmountMinor, rec.Verdict.Finding = m.wrong(want.AmountMinor)
		want.Version++ // the correction is a change
	}
	rec.Context.Target = &have
	return rec
}

// wrong makes of an amount what common mistakes make of it, never the same.
func (m *maker) wrong(amount int64) (int64, string) {
	switch m.below(4) {
	case 0:
		return amount - 25 - amount*14/1000, "fee_netted"
	case 1:
		return amount + int64(1+m.below(2)), "rounding"
	case 2:
		return amount * 100, "minor_units_twice"
	default:
		digits := []byte(fmt.Sprint(amount))
		i := slices.IndexFunc(digits[1:], func(d byte) bool { return d != digits[0] })
		if i < 0 {
			return amount - 10, "digit_wrong"
		}
		digits[0], digits[i+1] = digits[i+1], digits[0]
		var swapped int64
		for _, d := range digits {
			swapped = swapped*10 + int64(d-'0')
		}
		return swapped, "digits_swapped"
	}
}
