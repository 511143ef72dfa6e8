package consumer

import (
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/audit"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/policy"
)

// output is a record to produce, and the entry that it is the copy of.
type output struct {
	record kgo.Record
	entry  *entry // nil: an audit event
}

// outbox is the room that the outputs of one transaction after the other take.
type outbox struct {
	outs    []output
	bytes   []byte             // events, keys, and values of headers
	headers []kgo.RecordHeader // of copies
	scratch []deadletter.Header
}

// empty makes the room free for the next transaction, and keeps no record's bytes.
func (o *outbox) empty() {
	clear(o.outs)
	clear(o.headers)
	clear(o.scratch)
	o.outs, o.bytes, o.headers, o.scratch = o.outs[:0], o.bytes[:0], o.headers[:0], o.scratch[:0]
}

// outputs makes what a batch produces: for each partition the enqueued events,
// then per result its copy and its event. The events are numbered on from what
// the partition's progress says, so that an abort leaves no gap. They are valid
// until the room is emptied.
func (c *Consumer) outputs(b *batch, room *outbox) []output {
	outs, bytes, headers, scratch := room.outs, room.bytes, room.headers, room.scratch
	for _, s := range b.parts {
		seq := s.plan.Progress.Seq - int64(len(s.unseen)+len(s.done))
		event := func(t audit.Type, at time.Time, r *deadletter.Record, d policy.Decision) {
			seq++
			ev := audit.New(t, c.name, at, r)
			ev.Seq, ev.Rule = seq, d.Rule
			if d.Reason != "" {
				ev.Reason = d.Reason
			}
			var key []byte
			from := len(bytes)
			if ev.RecordID != "" { // else null
				bytes = append(bytes, ev.RecordID...)
				key = bytes[from:len(bytes):len(bytes)]
			}
			from = len(bytes)
			bytes = ev.AppendJSON(bytes)
			outs = append(outs, output{record: kgo.Record{
				Topic:     c.o.Audit,
				Partition: c.auditPartition(r),
				Key:       key,
				Value:     bytes[from:len(bytes):len(bytes)],
			}})
		}
		for _, e := range s.unseen {
			event(audit.Enqueued, b.began, &e.rec, policy.Decision{})
		}
		for _, e := range s.done {
			r := e.after()
			if topic := c.copyTopic(e); topic != "" {
				scratch, bytes = r.AppendHeaders(scratch[:0], bytes)
				from := len(headers)
				for _, h := range scratch {
					headers = append(headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
				}
				outs = append(outs, output{entry: e, record: kgo.Record{Topic: topic, Key: r.Key, Value: r.Value, Headers: headers[from:len(headers):len(headers)]}})
			}
			event(e.eventType(), e.decided, &r, e.decision)
		}
	}
	*room = outbox{outs, bytes, headers, scratch}
	return outs
}

// split tells copies from events.
func split(outs []output) (copies, events []output) {
	for _, o := range outs {
		if o.entry != nil {
			copies = append(copies, o)
		} else {
			events = append(events, o)
		}
	}
	return copies, events
}

// after is the record as its copy carries it.
func (e *entry) after() deadletter.Record {
	return policy.After(e.rec, e.decision, e.outcome, e.decided)
}

// eventType is the audit event of a result.
func (e *entry) eventType() audit.Type {
	switch {
	case e.expired:
		return audit.Expired
	case e.decision.Action == policy.Resolve:
		return audit.Resolved
	case e.decision.Action == policy.ToPoison:
		return audit.Poisoned
	case e.decision.Action == policy.Retry:
		return audit.RetryScheduled
	}
	return audit.Retiered // nothing counted: not due yet, or in progress elsewhere, as its reason says
}

// copyTopic is where the copy of a result goes; empty if it has none.
func (c *Consumer) copyTopic(e *entry) string {
	switch e.decision.Action {
	case policy.Retry, policy.Snooze, policy.Retier:
		topic, ok := c.tiers[e.decision.Tier]
		if !ok {
			panic("policy decided for a tier it does not have") // a retry without a copy would be a loss
		}
		return topic
	case policy.ToPoison:
		return c.o.Poison
	case policy.Call, policy.Wait, policy.HoldBack, policy.Resolve:
	}
	return ""
}

// auditPartition keeps one life in order on one partition: by the first arrival.
func (c *Consumer) auditPartition(r *deadletter.Record) int32 {
	topic, partition, ok := audit.OriginTopic(r.Origin)
	if !ok {
		topic, partition = r.Input.Topic, r.Input.Partition
	}
	return audit.Partition(topic, partition, c.o.AuditPartitions)
}
