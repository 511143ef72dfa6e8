package deadletter_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

const (
	startMS = 1764547200000 // 2025-12-01T00:00:00Z, ms since epoch
	dayMS   = 24 * 60 * 60 * 1000

	plainValue = `{"discrepancy_id":"r-1","category":"value_diverged","context":{"amount":"12.50"},"enqueued_ms":1764547200000}`
)

var (
	start    = time.UnixMilli(startMS).UTC()
	arrived  = int64(startMS + 5000) // the message's timestamp in these tests
	readAt   = start.Add(10 * time.Second)
	place    = deadletter.Place{Topic: "recon.dlq", TopicID: [16]byte{1, 2, 3}, Partition: 2, Offset: 17}
	tier     = deadletter.Place{Topic: "recon.dlq.retry.10s", TopicID: [16]byte{9}, Partition: 1, Offset: 4}
	identity = "00112233445566778899aabbccddeeff"
)

func header(key, value string) deadletter.Header {
	return deadletter.Header{Key: key, Value: []byte(value)}
}

func options(kind deadletter.Kind) deadletter.ReadOptions {
	return deadletter.ReadOptions{
		Kind: kind, Delay: 10 * time.Second, MaxWait: 7 * 24 * time.Hour, Now: readAt, ClusterID: "cluster-1",
	}
}

// readSource reads a value as it arrives on a source topic.
func readSource(value []byte, headers ...deadletter.Header) (deadletter.Record, error) {
	m := deadletter.Message{Place: place, Timestamp: arrived, Key: []byte("acct-17"), Value: value, Headers: headers}
	return deadletter.Read(m, options(deadletter.Source))
}

// readCopy reads a copy of plainValue from a topic of ours.
func readCopy(kind deadletter.Kind, headers ...deadletter.Header) (deadletter.Record, error) {
	m := deadletter.Message{Place: tier, Timestamp: arrived, Key: []byte("acct-17"), Value: []byte(plainValue), Headers: headers}
	return deadletter.Read(m, options(kind))
}

// wantMalformed checks that err is a MalformedError with exactly this text.
func wantMalformed(t *testing.T, err error, want string) {
	t.Helper()
	var malformed *deadletter.MalformedError
	if !errors.As(err, &malformed) {
		t.Fatalf("error is %v, want a MalformedError: %s", err, want)
	}
	if got := malformed.Error(); got != want {
		t.Errorf("error\n got %s\nwant %s", got, want)
	}
}

func wantNotes(t *testing.T, r deadletter.Record, want ...string) {
	t.Helper()
	if !slices.Equal(r.Notes, want) {
		t.Errorf("notes are %q, want %q", r.Notes, want)
	}
}

// sameHeaders compares bytes, order, and null against empty.
func sameHeaders(a, b []deadletter.Header) bool {
	return slices.EqualFunc(a, b, func(a, b deadletter.Header) bool {
		return a.Key == b.Key && sameBytes(a.Value, b.Value)
	})
}

func sameBytes(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }
