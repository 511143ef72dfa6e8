// Package deadletter is the vocabulary of the product: what a record is, how it
// travels in a Kafka message, and what a handler can answer. It imports the
// standard library only.
//
// # Wire contract
//
// A record's value is JSON (UTF-8) with the fields discrepancy_id, category,
// context, enqueued_ms (required) and verdict, attempts, max_attempts
// (optional); every other field is kept, because the value is never re-encoded.
// What the worker knows about a record travels in headers with the prefix
// "recon-"; see the constants below. They are believed only on topics that the
// worker alone writes.
package deadletter

import (
	"time"
)

// Names of the headers the worker owns. They are replaced, never appended.
const (
	HeaderPrefix      = "recon-"
	HeaderID          = "recon-id"           // identity: 32 hex digits
	HeaderOrigin      = "recon-origin"       // topic/partition/offset of the first arrival
	HeaderAttempt     = "recon-attempt"      // counted attempts made so far, decimal
	HeaderSnoozes     = "recon-snoozes"      // uncounted "in progress" answers since the last counted attempt
	HeaderTimestamp   = "recon-timestamp"    // record timestamp of the first arrival, ms since epoch
	HeaderNotBefore   = "recon-not-before"   // ms since epoch
	HeaderEnqueued    = "recon-enqueued"     // ms since epoch: when the discrepancy first entered the queue
	HeaderFirstFailed = "recon-first-failed" // ms since epoch of the first failed attempt
	HeaderErrorClass  = "recon-error-class"  // the last failure's cause, see Outcome.Cause
	HeaderErrorStatus = "recon-error-status" // the last failure's HTTP status, where it had one
	HeaderErrorCode   = "recon-error-code"   // the last failure's code, see Outcome.Code
	HeaderError       = "recon-error"        // the last failure's message, at most MaxErrorBytes
	HeaderReason      = "recon-reason"       // poison only: why
	HeaderRule        = "recon-rule"         // poison only: name of the rule that decided
	HeaderRedrive     = "recon-redrive"      // how often an operator has sent it back
	HeaderRedriven    = "recon-redriven"     // ms since epoch of the last redrive
	HeaderMasked      = "recon-masked"       // a poison copy whose values are masked
)

// MaxErrorBytes bounds the recon-error header; longer messages are cut on a rune boundary.
const MaxErrorBytes = 1024

// MaxOverhead is what a copy may weigh more than its original, in bytes.
const MaxOverhead = 64 << 10

// Header is one Kafka record header. A nil Value is Kafka's null, which is not the empty value.
type Header struct {
	Key   string
	Value []byte
}

// Place is where a record lies in a cluster. TopicID tells a topic from its
// namesake that was deleted and created again; it is zero where brokers have no ids.
type Place struct {
	Topic     string
	TopicID   [16]byte
	Partition int32
	Offset    int64
}

// Kind says what a topic is to the worker, and so whether its headers are believed.
type Kind uint8

// The kinds of topics a record can be read from.
const (
	Source Kind = iota // written by others: owned headers are ignored and replaced
	Tier               // written by the worker: waits Delay
	Hold               // written by the worker: waits for a target
	Poison             // written by the worker: waits for people
)

// Message is a Kafka record as it was read. Its byte slices are borrowed and never changed.
type Message struct {
	Place     Place
	Timestamp int64 // ms since epoch, as the broker gives it
	Key       []byte
	Value     []byte
	Headers   []Header
}

// Record is one discrepancy, from its arrival to its end, through all its copies.
// Times are milliseconds since the epoch, 0 for "not known".
type Record struct {
	ID     string // identity everywhere, see HeaderID
	Origin string // topic/partition/offset of the first arrival
	Kind   Kind   // of the topic this copy was read from
	Input  Place  // where this copy was read

	DiscrepancyID string
	Category      string
	MaxAttempts   int // handler calls the value asks for; 0: as policy says

	Attempt     int // counted attempts made so far
	Snoozes     int
	Timestamp   int64 // of the first arrival
	NotBefore   int64
	Enqueued    int64
	FirstFailed int64
	ErrorClass  string // cause of the last failure, see Outcome.Cause
	ErrorStatus int    // its HTTP status; 0 where it had none
	ErrorCode   string // its code, see Outcome.Code
	Error       string // its message
	Reason      string // poison only
	Rule        string // poison only: name of the rule that decided
	Redrive     int
	Redriven    int64
	Masked      bool // poison only: the value is masked, never send it back

	// Notes lists what was repaired while reading (Note* constants): each is counted on a metric.
	Notes []string

	Key     []byte
	Value   []byte
	Foreign []Header // headers of others, in order, duplicates and nulls included

	// Findings is a place for policy to note what it found in the value, so that
	// it is parsed once. Nil is right, too; it is no part of the record.
	Findings any
}

// What Read repaired; stable, for metric labels.
const (
	NoteEnqueuedAhead   = "enqueued_ahead"   // a little ahead of the arrival: clamped to it
	NoteForged          = "forged_headers"   // owned headers on a source topic: replaced
	NoteNotBeforeBad    = "not_before_bad"   // missing or garbage in a tier: append + delay
	NoteNotBeforeFar    = "not_before_far"   // further than any wait policy can set: append + delay
	NoteHeaderRepaired  = "header_repaired"  // duplicates or an overflow in an owned header
	NoteIdentityMissing = "identity_missing" // no recon-id on a topic of ours: made from this position
	NoteAttemptsClamped = "attempts_clamped" // the value's attempts left no call: clamped so that each record is tried once
)

// Reasons of poison. Stable: they are in headers, audit events and metrics.
const (
	ReasonAttemptsExhausted = "attempts_exhausted"
	ReasonPermanent         = "permanent"
	ReasonSLABreached       = "sla_breached"
	ReasonMalformed         = "malformed"
	ReasonManual            = "manual"
)

// Class is what an answer of a handler means for the record and its target.
type Class uint8

// The classes of outcomes, as in the handler contract.
const (
	Resolved    Class = iota // the record is settled
	Permanent                // will never succeed: poison now; counted
	Suspect                  // record or target: counted, unless the target turns out to be down
	Busy                     // the target asks for time (RetryAfter): not counted
	InProgress               // being worked on elsewhere: not counted, ten times
	Unavailable              // refused, reset before a byte, DNS, no route: not counted
	Stopped                  // the worker gave the call up (shutdown, lost partition): not counted
)

// MaxCodeBytes bounds Outcome.Code.
const MaxCodeBytes = 64

// ValidCode says whether a code can be kept: at most MaxCodeBytes of printable ASCII without spaces.
func ValidCode(code string) bool {
	for i := range len(code) {
		if code[i] <= ' ' || code[i] > '~' {
			return false
		}
	}
	return len(code) <= MaxCodeBytes
}

// Outcome is what a handler answered.
type Outcome struct {
	Class Class
	// Cause is short, stable and safe for headers, metrics and logs:
	// "timeout", "refused", "reset", "dns", "http_503", "panic", "rejected", "poison_requested", …
	Cause string
	// Code is what the target itself calls the failure, such as "E42"; empty where it
	// said nothing, and where ValidCode refuses it. It is for rules and the header
	// recon-error-code: it reaches no log, metric or notification.
	Code string
	// Message is for the recon-error header only. It can carry field values: it reaches no log, metric or notification.
	Message string
	// Status is the HTTP status, 0 where there is none.
	Status int
	// RetryAfter is how long a Busy target asked to be left alone; 0 where it did not say.
	RetryAfter time.Duration
	// PermanentIfCounted: a misconfiguration answer (401, 403, 404, 405, 415, redirect); when it counts, the record goes to poison.
	PermanentIfCounted bool
}
