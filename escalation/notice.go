package escalation

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

const (
	maxID    = 512 // bytes of an id or a category in a notice, as the value codec allows
	maxToken = 64  // bytes of a reason or an error class
)

// notice is all that people are told of a record: what names it and what became
// of it. There is no place in it for a value, a key, a header or an error message.
type notice struct {
	RecordID      string `json:"recon_id"`
	DiscrepancyID string `json:"discrepancy_id,omitempty"`
	Category      string `json:"category,omitempty"`
	Reason        string `json:"reason"`
	ErrorClass    string `json:"error_class,omitempty"`
	Attempt       int    `json:"attempt"`
	Redrive       int    `json:"redrive"`
	Origin        string `json:"origin"`
	Poison        string `json:"poison"` // topic/partition/offset of the poison copy
	EnqueuedMS    int64  `json:"enqueued_ms,omitempty"`
	Source        string `json:"source"`
}

// newNotice takes what may be told of r. Texts are bounded.
func newNotice(r *deadletter.Record, source string) notice {
	return notice{
		RecordID:      cut(r.ID, maxID),
		DiscrepancyID: cut(r.DiscrepancyID, maxID),
		Category:      cut(r.Category, maxID),
		Reason:        r.Reason,
		ErrorClass:    r.ErrorClass,
		Attempt:       r.Attempt,
		Redrive:       r.Redrive,
		Origin:        cut(r.Origin, maxID),
		Poison:        fmt.Sprintf("%s/%d/%d", r.Input.Topic, r.Input.Partition, r.Input.Offset),
		EnqueuedMS:    r.Enqueued,
		Source:        cut(source, maxID),
	}
}

// key is the same for every POST about this stay of the record in poison, and
// another after a redrive.
func (n notice) key() string { return fmt.Sprintf("%s-%d", n.RecordID, n.Redrive) }

// body is the JSON that is posted. It is below 20 KiB at worst, since every text is bounded.
func (n notice) body() ([]byte, error) { return json.Marshal(n) }

// LogValue gives the notice's fields for a log line.
func (n notice) LogValue() slog.Value {
	attrs := []slog.Attr{
		slog.String("recon_id", n.RecordID),
		slog.String("discrepancy_id", n.DiscrepancyID),
		slog.String("category", n.Category),
		slog.String("reason", n.Reason),
		slog.String("error_class", n.ErrorClass),
		slog.Int("attempt", n.Attempt),
		slog.Int("redrive", n.Redrive),
		slog.String("origin", n.Origin),
		slog.String("poison", n.Poison),
	}
	if n.EnqueuedMS != 0 {
		attrs = append(attrs, slog.Time("enqueued", time.UnixMilli(n.EnqueuedMS).UTC()))
	}
	return slog.GroupValue(attrs...)
}

// cut shortens s to at most limit bytes, on a rune boundary, as valid UTF-8.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && s[limit]&0xC0 == 0x80 {
		limit--
	}
	return s[:limit]
}

// word returns s if it is a plain word of our vocabulary's form, "other" else: a
// reason or class that somebody else wrote could be anything.
func word(s string) string {
	if len(s) > maxToken {
		return "other"
	}
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' && c != '.' && c != '-' {
			return "other"
		}
	}
	return s
}
