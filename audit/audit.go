// Package audit makes the events of the trail. It is the one place that makes
// an event; who writes it, and in which transaction, is the caller's affair.
package audit

import (
	"time"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

// Type is the kind of an event, as in the CloudEvents type attribute.
type Type string

// The events of a record's life.
const (
	Enqueued       Type = "recon.dlq.enqueued" // source topics only, as soon as the record is read
	RetryScheduled Type = "recon.dlq.retry_scheduled"
	Retiered       Type = "recon.dlq.retiered"
	Resolved       Type = "recon.dlq.resolved"
	Poisoned       Type = "recon.dlq.poisoned"
	Expired        Type = "recon.dlq.expired"
	Escalated      Type = "recon.dlq.escalated"
)

// types is every Type, for Parse; a test reads the source so that none misses.
var types = []Type{Enqueued, RetryScheduled, Retiered, Resolved, Poisoned, Expired, Escalated}

// Event is one entry of the trail. It never carries a field value.
type Event struct {
	Type     Type
	Source   string           // the worker that writes it: a URI-reference, not empty
	Subject  string           // discrepancy id, "-" if it cannot be read
	Time     time.Time        // UTC, written with milliseconds
	RecordID string           // recon-id; the Kafka key. Empty only in Expired: what is gone cannot be read
	Origin   string           // topic/partition/offset of the record's first arrival. Empty only in Expired
	Input    deadletter.Place // the copy that was read
	Attempt  int              // counted attempts after this event
	Category string
	Reason   string
	Rule     string
	Seq      int64 // gap-free per input partition, from 1
}

// New makes an event of what happened to r at now. It takes from the record what
// names it, and nothing of its context, verdict, key, foreign headers or error
// message. The caller sets Reason, Rule and Seq, and Attempt where the event
// changes it.
func New(t Type, source string, now time.Time, r *deadletter.Record) Event {
	subject := r.DiscrepancyID
	if subject == "" {
		subject = noSubject
	}
	return Event{
		Type:     t,
		Source:   source,
		Subject:  subject,
		Time:     now.UTC(),
		RecordID: r.ID,
		Origin:   r.Origin,
		Input:    r.Input,
		Attempt:  r.Attempt,
		Category: r.Category,
	}
}
