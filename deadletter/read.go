package deadletter

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strconv"
	"time"
	"unsafe"
)

// ReadOptions is what Read must know about the topic and the time.
type ReadOptions struct {
	Kind      Kind          // of the topic
	Delay     time.Duration // Tier: of the topic
	MaxWait   time.Duration // Tier and Hold: the furthest from Now that policy can set a not-before
	Now       time.Time     // required: the reader's clock
	ClusterID string        // part of the identity of what arrives
	Raw       bool          // values are opaque: somebody else's dead letters, see Read
}

// Read makes a record of a message, by the wire contract in the package comment.
// The record borrows the message's slices, the slice of headers included; its
// texts, too, are the message's bytes.
//
// What is repaired is listed in Record.Notes:
//
//   - The arrival is the message's timestamp, but never later than Now, and Now
//     where the timestamp is before 2000. An enqueued_ms later than the arrival
//     is clamped to it, so that no clock ahead of ours hides a record's age; up
//     to 24 h ahead of Now that is legal, beyond it is malformed. Unknown (0)
//     is the arrival.
//   - On a source topic owned headers are dropped, whatever they say.
//   - On topics of ours the last well-formed value of an owned header counts.
//     Numbers are plain decimals; too great ones are clamped to 2147483647
//     (counters) or to the arrival (times of the past). Owned headers that this
//     version does not know are dropped.
//   - A tier's record with no readable not-before, and a not-before beyond
//     Now + MaxWait, is due at arrival + Delay.
//
// With Raw any value is legal, null included, and on every kind of topic. There
// is no discrepancy id, and no category: the caller's rules give one. No attempt
// is made yet, whatever foreign headers say. The first original timestamp among
// them (see Facts) stands for enqueued_ms, from 2000 to 24 h ahead; else it is unknown.
//
// The error is nil or a *[MalformedError], of the value before that of a header. Then the record still has all that
// could be read: ID, Origin, Key, Value and Foreign always.
func Read(m Message, o ReadOptions) (Record, error) {
	now := o.Now.UnixMilli()
	arrival := min(m.Timestamp, now)
	if arrival < year2000 {
		arrival = now
	}
	var v values
	var err *MalformedError
	if o.Raw {
		v = rawValues(m.Headers, now)
	} else {
		v, err = parseValue(m.Value, now)
	}
	r := Record{
		Kind:          o.Kind,
		Input:         m.Place,
		DiscrepancyID: v.discrepancyID,
		Category:      v.category,
		MaxAttempts:   v.maxAttempts,
		Attempt:       v.attempts,
		Enqueued:      v.enqueued,
		Key:           m.Key,
		Value:         m.Value,
	}
	if o.Kind == Source {
		r.arrive(m, o)
		if r.Foreign = foreign(m.Headers); len(r.Foreign) < len(m.Headers) {
			r.note(NoteForged)
		}
	} else {
		var own owned
		r.Foreign = own.collect(m.Headers)
		if fault := r.believe(&own, m, o, arrival); err == nil {
			err = fault
		}
	}
	switch {
	case r.Enqueued == 0:
		r.Enqueued = arrival
	case r.Enqueued > arrival && o.Kind == Source:
		r.Enqueued = arrival
		r.note(NoteEnqueuedAhead)
	}
	if err != nil {
		return r, err
	}
	return r, nil
}

// arrive makes the identity of a record that is seen for the first time.
func (r *Record) arrive(m Message, o ReadOptions) {
	r.ID = Identity(o.ClusterID, m.Place)
	r.Origin = m.Place.String()
	r.Timestamp = max(m.Timestamp, 0)
}

// borrow makes a text of bytes that never change, see Message: a record has half
// a dozen of them, and copying each would be most of what reading it allocates.
func borrow(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

func (r *Record) note(note string) { r.Notes = append(r.Notes, note) }

// Identity is the recon-id of what arrives at p: hex of the first 16 bytes of
// SHA-256 over cluster id, topic id, partition (int32) and offset (int64), big
// endian, the first two each behind its length (uint32). The topic id is a 1
// and its 16 bytes or, where brokers have no ids, a 0 and the topic's name.
func Identity(clusterID string, p Place) string {
	b := make([]byte, 0, 256)
	b = binary.BigEndian.AppendUint32(b, uint32(len(clusterID)))
	b = append(b, clusterID...)
	if p.TopicID != [16]byte{} {
		b = binary.BigEndian.AppendUint32(b, uint32(1+len(p.TopicID)))
		b = append(b, 1)
		b = append(b, p.TopicID[:]...)
	} else {
		b = binary.BigEndian.AppendUint32(b, uint32(1+len(p.Topic)))
		b = append(b, 0)
		b = append(b, p.Topic...)
	}
	b = binary.BigEndian.AppendUint32(b, uint32(p.Partition))
	b = binary.BigEndian.AppendUint64(b, uint64(p.Offset))
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:idBytes])
}

const idBytes = 16 // of the hash, in an identity

// String is topic/partition/offset: unambiguous, as Kafka allows no slash in a topic's name.
func (p Place) String() string {
	b := make([]byte, 0, 300)
	b = append(b, p.Topic...)
	b = append(b, '/')
	b = strconv.AppendInt(b, int64(p.Partition), 10)
	b = append(b, '/')
	b = strconv.AppendInt(b, p.Offset, 10)
	return string(b)
}
