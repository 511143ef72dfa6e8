package ledger

import (
	"slices"
	"strings"

	"github.com/recon-dlq/recon-dlq/internal/demo/data"
)

// Diff is one entry in which a ledger and the source of truth are not the same.
type Diff struct {
	EntryID       string      `json:"entry_id"`
	DiscrepancyID string      `json:"discrepancy_id"` // that is about it
	Source        *data.Entry `json:"source,omitempty"`
	Ledger        *data.Entry `json:"ledger,omitempty"`
}

// Compare says where a snapshot is not the source of truth, by entry id. An
// entry that is reversed in the ledger and unknown to the source does not count
// any more, and is no difference. What remains after all records were settled
// is about the records that ended in poison.
func Compare(snapshot []data.Entry) []Diff {
	have := make(map[string]data.Entry, len(snapshot))
	for _, e := range snapshot {
		have[e.ID] = e
	}
	var diffs []Diff
	diff := func(id string, source, ledger *data.Entry) {
		diffs = append(diffs, Diff{EntryID: id, DiscrepancyID: data.DiscrepancyOf(id), Source: source, Ledger: ledger})
	}
	for _, want := range data.Source() {
		switch got, ok := have[want.ID]; {
		case !ok:
			diff(want.ID, &want, nil)
		case got != want:
			diff(want.ID, &want, &got)
		}
		delete(have, want.ID)
	}
	for id, e := range have {
		if e.State != data.Reversed {
			diff(id, nil, &e)
		}
	}
	slices.SortFunc(diffs, func(a, b Diff) int { return strings.Compare(a.EntryID, b.EntryID) })
	return diffs
}
