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

// Event is one entry of the trail. It never carries a field value.
type Event struct {
	Type     Type
	Source   string           // the worker that writes it
	Subject  string           // discrepancy id, "-" if it cannot be read
	Time     time.Time        // UTC
	RecordID string           // recon-id; the Kafka key
	Origin   string           // topic/partition/offset of the record's first arrival
	Input    deadletter.Place // the copy that was read
	Attempt  int              // counted attempts after this event
	Category string
	Reason   string
	Rule     string
	Seq      int64 // gap-free per input partition, from 1
}
