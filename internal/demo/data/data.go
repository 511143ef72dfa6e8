// Package data is the demo's set: a ledger that has drifted from its source of
// truth, and the discrepancies a reconciliation found between them. The files
// are made by gen, from a fixed seed, and are in the repository to be read.
//
// Discrepancy d-000123 is about entry e-000123. All merchants are invented, all
// amounts are in minor units (cents, pence; whole yen).
package data

import (
	"bytes"
	_ "embed" // the files
	"encoding/json"
	"fmt"
	"strings"
)

//go:generate go run ./gen

var (
	//go:embed accounts.jsonl
	accounts []byte
	//go:embed source.jsonl
	source []byte
	//go:embed ledger.jsonl
	ledger []byte
	//go:embed discrepancies.jsonl
	discrepancies []byte
)

// Categories of discrepancies.
const (
	AmountDiffers   = "amount_differs"    // the amounts are not the same
	MissingInTarget = "missing_in_target" // the source has an entry that the ledger has not
	OrphanInTarget  = "orphan_in_target"  // the ledger has an entry that the source has not
	StaleVersion    = "stale_version"     // the ledger has an older version of the entry
	CurrencyUnknown = "currency_unknown"  // missing, and in a currency that its account does not hold: cannot be fixed
)

// The states of an entry.
const (
	Booked   = "booked"
	Reversed = "reversed" // does not count any more; a ledger deletes nothing
)

// Account is a merchant's account in one currency.
type Account struct {
	ID       string `json:"id"`
	Merchant string `json:"merchant"`
	Currency string `json:"currency"` // ISO 4217
}

// Entry is one booking.
type Entry struct {
	ID          string `json:"id"`
	Account     string `json:"account"`
	AmountMinor int64  `json:"amount_minor"` // in the currency's minor unit
	Currency    string `json:"currency"`     // ISO 4217
	Version     int64  `json:"version"`      // goes up with each change in the source
	State       string `json:"state"`        // Booked or Reversed
}

// Context is a discrepancy's context: all that a target needs.
type Context struct {
	Run    string `json:"run"`              // of the reconciliation
	Source *Entry `json:"source,omitempty"` // as it should be; absent: should not be
	Target *Entry `json:"target,omitempty"` // as the reconciliation found it; absent: was not there
}

// Discrepancy is one line of the file of discrepancies, a record's value.
type Discrepancy struct {
	ID       string
	Category string // empty if malformed
	EntryID  string // that it is about
	Value    []byte // as it is enqueued
	// Malformed: not a record at all. Hopeless: well-formed, but no target can
	// settle it. Both end in poison.
	Malformed, Hopeless bool
}

// Accounts of the ledger.
func Accounts() []Account { return parse[Account]("accounts", accounts) }

// Source is the source of truth.
func Source() []Entry { return parse[Entry]("source", source) }

// Ledger is what the target has before the demo.
func Ledger() []Entry { return parse[Entry]("ledger", ledger) }

// Discrepancies between Source and Ledger, in the file's order.
func Discrepancies() []Discrepancy {
	var ds []Discrepancy
	for line := range bytes.Lines(discrepancies) {
		n := len(ds) + 1
		d := Discrepancy{ID: fmt.Sprintf("d-%06d", n), EntryID: fmt.Sprintf("e-%06d", n), Value: bytes.TrimSuffix(line, []byte("\n"))}
		var v struct {
			Category string          `json:"category"`
			Context  json.RawMessage `json:"context"`
		}
		if err := json.Unmarshal(d.Value, &v); err != nil || v.Context == nil {
			d.Malformed = true
		} else {
			d.Category = v.Category
			d.Hopeless = v.Category == CurrencyUnknown
		}
		ds = append(ds, d)
	}
	return ds
}

// DiscrepancyOf names the discrepancy that an entry's difference belongs to.
func DiscrepancyOf(entryID string) string { return "d-" + strings.TrimPrefix(entryID, "e-") }

// parse reads JSON lines of this package. They are part of the program: what
// cannot be read is a fault of the build.
func parse[T any](name string, lines []byte) []T {
	var all []T
	for line := range bytes.Lines(lines) {
		var v T
		if err := json.Unmarshal(line, &v); err != nil {
			panic(fmt.Sprintf("demo data: %s.jsonl, line %d: %v", name, len(all)+1, err))
		}
		all = append(all, v)
	}
	return all
}
