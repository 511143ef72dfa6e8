package invariants_test

import (
	"context"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/audit"
	"github.com/recon-dlq/recon-dlq/consumer/progress"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/policy"
	"github.com/recon-dlq/recon-dlq/test/brokers"
	"github.com/recon-dlq/recon-dlq/test/invariants"
)

const partitions = 2

// start is when the lives begin; records are younger than retention, so it is now.
var start = time.Now().UTC().Truncate(time.Millisecond)

// script is what a worker would have written, in memory, so that a test can
// spoil it before it is written.
type script struct {
	names     brokers.Names
	clusterID string
	topicIDs  map[string][16]byte
	records   []*kgo.Record
	next      map[string][]int64 // next offsets by topic and partition
	seq       map[string]int64   // by input partition
	calls     map[string][]invariants.Call
	trim      map[string]int64 // by topic: delete all below, on every partition
}

func newScript(t testing.TB, b brokers.Broker) *script {
	t.Helper()
	s := &script{
		names: brokers.Topics(t, b, partitions, nil, nil), topicIDs: make(map[string][16]byte), next: make(map[string][]int64),
		seq: make(map[string]int64), calls: make(map[string][]invariants.Call), trim: make(map[string]int64),
	}
	meta, err := kadm.NewClient(brokers.Client(t, b.Opts()...)).Metadata(t.Context(), s.names.All()...)
	if err != nil {
		t.Fatal(err)
	}
	s.clusterID = meta.Cluster
	for _, d := range meta.Topics {
		s.topicIDs[d.Topic] = d.ID
	}
	return s
}

func (s *script) append(r *kgo.Record) deadletter.Place {
	if s.next[r.Topic] == nil {
		s.next[r.Topic] = make([]int64, partitions)
	}
	p := deadletter.Place{Topic: r.Topic, TopicID: s.topicIDs[r.Topic], Partition: r.Partition, Offset: s.next[r.Topic][r.Partition]}
	s.next[r.Topic][r.Partition]++
	s.records = append(s.records, r)
	return p
}

// arrive writes a record to the source and its enqueued event.
func (s *script) arrive(key string, partition int32) deadletter.Record {
	r := &kgo.Record{
		Topic: s.names.Source, Partition: partition, Key: []byte(key), Timestamp: start,
		Value:   fmt.Appendf(nil, `{"discrepancy_id":%q,"category":"amount","context":{"card":"4111-secret"},"enqueued_ms":0}`, key),
		Headers: []kgo.RecordHeader{{Key: "trace", Value: []byte{0, 1}}, {Key: "trace", Value: nil}, {Key: "trace", Value: []byte{}}},
	}
	rec := s.read(r, s.append(r), deadletter.Source)
	s.event(audit.Enqueued, rec, "")
	return rec
}

func (s *script) read(r *kgo.Record, p deadletter.Place, kind deadletter.Kind) deadletter.Record {
	headers := make([]deadletter.Header, len(r.Headers))
	for i, h := range r.Headers {
		headers[i] = deadletter.Header{Key: h.Key, Value: h.Value}
	}
	rec, err := deadletter.Read(deadletter.Message{Place: p, Timestamp: r.Timestamp.UnixMilli(), Key: r.Key, Value: r.Value, Headers: headers},
		deadletter.ReadOptions{Kind: kind, Delay: time.Second, MaxWait: time.Hour, Now: start, ClusterID: s.clusterID})
	if err != nil {
		panic(err) // the test's own record
	}
	return rec
}

func (s *script) copyTo(topic string, kind deadletter.Kind, rec deadletter.Record) deadletter.Record {
	r := &kgo.Record{Topic: topic, Partition: rec.Input.Partition, Key: rec.Key, Value: rec.Value, Timestamp: start}
	for _, h := range rec.Headers() {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
	}
	return s.read(r, s.append(r), kind)
}

func (s *script) event(typ audit.Type, rec deadletter.Record, reason string) {
	e := audit.New(typ, "test/worker", start, &rec)
	e.Reason, e.Rule = reason, "default"
	part := fmt.Sprintf("%s/%d", rec.Input.Topic, rec.Input.Partition)
	s.seq[part]++
	e.Seq = s.seq[part]
	topic, partition, _ := audit.OriginTopic(rec.Origin)
	s.append(&kgo.Record{Topic: s.names.Audit, Partition: audit.Partition(topic, partition, partitions), Key: e.Key(), Value: e.AppendJSON(nil)})
}

func (s *script) call(rec deadletter.Record) {
	at := start
	if rec.NotBefore > 0 {
		at = time.UnixMilli(rec.NotBefore).Add(3 * time.Millisecond)
	}
	s.calls[rec.ID] = append(s.calls[rec.ID], invariants.Call{At: at, Attempt: rec.Attempt})
}

func (s *script) resolve(rec deadletter.Record) {
	s.call(rec)
	s.event(audit.Resolved, rec, "")
}

func (s *script) retry(rec deadletter.Record) deadletter.Record {
	s.call(rec)
	next := rec
	next.Attempt++
	next.ErrorClass, next.Error = "http_500", "cannot book 4111-secret" // recon-error may say what the target said
	next.NotBefore = start.Add(time.Duration(next.Attempt) * time.Second).UnixMilli()
	after := rec
	after.Attempt++
	s.event(audit.RetryScheduled, after, "failed")
	return s.copyTo(s.names.Tier(time.Second), deadletter.Tier, next)
}

func (s *script) retier(rec deadletter.Record) deadletter.Record {
	s.event(audit.Retiered, rec, "not_due")
	return s.copyTo(s.names.Tier(2*time.Second), deadletter.Tier, rec)
}

func (s *script) snooze(rec deadletter.Record) deadletter.Record {
	s.call(rec)
	s.event(audit.Retiered, rec, policy.ReasonInProgress)
	next := rec
	next.Snoozes++
	next.NotBefore = start.Add(5 * time.Second).UnixMilli()
	return s.copyTo(s.names.Tier(5*time.Second), deadletter.Tier, next)
}

func (s *script) poison(rec deadletter.Record) deadletter.Record {
	s.call(rec)
	rec.Attempt++
	s.event(audit.Poisoned, rec, deadletter.ReasonAttemptsExhausted)
	rec.Reason, rec.NotBefore = deadletter.ReasonAttemptsExhausted, 0
	return s.copyTo(s.names.Poison, deadletter.Poison, rec)
}

// live writes the lives that the tests spoil, and returns their records by step.
type lives struct {
	resolved       deadletter.Record // resolved at once
	first, second  deadletter.Record // retried twice, then poisoned: source record, copies
	third          deadletter.Record
	dead           deadletter.Record
	waited         deadletter.Record // snoozed, retiered, then resolved
	snoozed, moved deadletter.Record
}

func (s *script) live() (l lives) {
	l.resolved = s.arrive("resolved", 0)
	l.first = s.arrive("poisoned", 1)
	l.waited = s.arrive("waited", 1)
	s.resolve(l.resolved)
	l.second = s.retry(l.first)
	l.snoozed = s.snooze(l.waited)
	l.third = s.retry(l.second)
	l.moved = s.retier(l.snoozed)
	l.dead = s.poison(l.third)
	s.resolve(l.moved)
	s.event(audit.Escalated, l.dead, "")
	return l
}

// spec is the strictest that the clean lives fulfil.
func (s *script) spec() invariants.Spec {
	return invariants.Spec{
		Sources: []string{s.names.Source}, RetryPrefix: s.names.Retry, HoldPrefix: s.names.Hold, Poison: s.names.Poison,
		Audit: s.names.Audit, Group: s.names.Group, Settled: true, Escalated: true, HandlerCalls: s.calls, Secrets: []string{"4111-secret"},
	}
}

// write puts the script on the broker; progress is at the end of each input partition.
func (s *script) write(t testing.TB, b brokers.Broker) {
	t.Helper()
	brokers.ProduceTo(t, b, s.records...)
	adm := kadm.NewClient(brokers.Client(t, b.Opts()...))
	offsets := make(kadm.Offsets)
	for _, topic := range append(s.names.Tiers(), s.names.Source) {
		for partition, next := range s.next[topic] {
			s.commit(t, offsets, progress.Progress{Low: next, Top: next, Seen: next}, topic, int32(partition))
		}
	}
	if err := adm.CommitAllOffsets(t.Context(), s.names.Group, offsets); err != nil {
		t.Fatal(err)
	}
	for topic, below := range s.trim {
		starts := make(kadm.Offsets)
		for partition, next := range s.next[topic] {
			starts.Add(kadm.Offset{Topic: topic, Partition: int32(partition), At: min(below, next), LeaderEpoch: -1})
		}
		deleted, err := adm.DeleteRecords(t.Context(), starts)
		if err == nil {
			err = deleted.Error()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func (s *script) commit(t testing.TB, offsets kadm.Offsets, p progress.Progress, topic string, partition int32) {
	t.Helper()
	metadata, err := progress.Encode(p, progress.DefaultLimit)
	if err != nil {
		t.Fatal(err)
	}
	offsets.Add(kadm.Offset{Topic: topic, Partition: partition, At: p.Low, LeaderEpoch: -1, Metadata: metadata})
}

func check(t testing.TB, b brokers.Broker, spec invariants.Spec) invariants.Report {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	report, err := invariants.Check(ctx, b.Opts(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func TestMain(m *testing.M) { os.Exit(brokers.Main(m)) }

func TestCleanLivesAreClean(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		s := newScript(t, b)
		s.live()
		s.write(t, b)
		report := check(t, b, s.spec())
		if err := report.Err(); err != nil {
			t.Fatal(err)
		}
		want := invariants.Report{Records: 3, Resolved: 2, Retried: 2, Snoozed: 1, Retiered: 1, Poisoned: 1, Escalated: 1, Lateness: 3 * time.Millisecond}
		want.Took = report.Took
		if !reflect.DeepEqual(report, want) {
			t.Errorf("report is %v (lateness %s), want %v", report, report.Lateness, want)
		}
	})
}

func TestWhatWasAbortedDoesNotCountAndWhatIsOpenIsWaitedFor(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		s := newScript(t, b)
		l := s.live()
		s.write(t, b)
		cl := brokers.Client(t, append(b.Opts(), kgo.TransactionalID(s.names.Prefix), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
		s.records = nil // the same resolution and the same poison copy, once more
		s.event(audit.Resolved, l.resolved, "")
		s.copyTo(s.names.Poison, deadletter.Poison, l.dead)
		if err := cl.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		if err := cl.ProduceSync(t.Context(), s.records...).FirstErr(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cl.EndTransaction(t.Context(), kgo.TryAbort) }()
		report := check(t, b, s.spec())
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if err := report.Err(); err != nil {
			t.Fatal(err)
		}
	})
}

// Each violation is planted in clean lives, and must be found and named.
func TestEachViolationIsFound(t *testing.T) {
	// drop leaves out the last record that fits.
	drop := func(s *script, topic string, fits func(*kgo.Record) bool) {
		for i := len(s.records) - 1; i >= 0; i-- {
			if r := s.records[i]; r.Topic == topic && fits(r) {
				s.records = append(s.records[:i], s.records[i+1:]...)
				s.next[topic][r.Partition]--
				return
			}
		}
		panic("nothing to drop in " + topic)
	}
	// find returns the last record that fits, to be changed.
	find := func(s *script, topic, key string) *kgo.Record {
		for i := len(s.records) - 1; i >= 0; i-- {
			if r := s.records[i]; r.Topic == topic && strings.Contains(string(r.Key), key) {
				return r
			}
		}
		panic("no record with key " + key + " in " + topic)
	}
	set := func(r *kgo.Record, name, value string) {
		for i := range r.Headers {
			if r.Headers[i].Key == name {
				r.Headers[i].Value = []byte(value)
				return
			}
		}
		panic("no header " + name)
	}
	ofType := func(typ audit.Type, id string) func(*kgo.Record) bool {
		return func(r *kgo.Record) bool {
			return string(r.Key) == id && strings.Contains(string(r.Value), `"`+string(typ)+`"`)
		}
	}
	const second, third = time.Second, 2 * time.Second // tiers
	tests := []struct {
		name string
		plan func(s *script, l lives)
		want []string // each in a fault
		lost, doubled,
		early int
	}{
		{name: "a lost retry copy", want: []string{"1 conservation", "copied to a tier, and the copy is not there"}, lost: 1,
			plan: func(s *script, l lives) {
				fourth := s.arrive("lost", 0)
				s.retry(fourth)
				drop(s, s.names.Tier(second), func(r *kgo.Record) bool { return string(r.Key) == "lost" })
			}},
		{name: "a lost poison copy", want: []string{"1 conservation", "copied to poison, and the copy is not there"}, lost: 1,
			plan: func(s *script, l lives) {
				s.poison(s.arrive("lost", 0))
				drop(s, s.names.Poison, func(r *kgo.Record) bool { return string(r.Key) == "lost" })
			}},
		{name: "a copy without its event", want: []string{"1 conservation", "it has a copy in a tier that no event tells of", "nothing became of its copy"}, lost: 1, doubled: 1,
			plan: func(s *script, l lives) { s.copyTo(s.names.Tier(second), deadletter.Tier, l.second) }},
		{name: "a doubled poison copy", want: []string{"it has a copy in poison that no event tells of", "is not escalated"}, lost: 1, doubled: 1,
			plan: func(s *script, l lives) { s.copyTo(s.names.Poison, deadletter.Poison, l.dead) }},
		{name: "a position with two effects", want: []string{"1 conservation", "has 2 effects"}, doubled: 1,
			plan: func(s *script, l lives) { s.event(audit.Resolved, l.resolved, "") }},
		{name: "a record that nothing became of", want: []string{"1 conservation", "nothing became of its copy"}, lost: 1,
			plan: func(s *script, l lives) { s.arrive("forgotten", 0) }},
		{name: "a missing enqueued event", want: []string{"1 conservation", "has no enqueued event", "seq", "has the seqs 2"}, lost: 1,
			plan: func(s *script, l lives) { drop(s, s.names.Audit, ofType(audit.Enqueued, l.waited.ID)) }},
		{name: "two enqueued events", want: []string{"1 conservation", "has 2 enqueued events"}, doubled: 1,
			plan: func(s *script, l lives) { s.event(audit.Enqueued, l.resolved, "") }},
		{name: "an effect on a position without a record", want: []string{"1 conservation", "where there is no record"},
			plan: func(s *script, l lives) {
				ghost := l.resolved
				ghost.Input.Offset = 77
				s.event(audit.Retiered, ghost, "")
				s.copyTo(s.names.Tier(third), deadletter.Tier, l.resolved)
				s.event(audit.Resolved, s.read(s.records[len(s.records)-1], deadletter.Place{Topic: s.names.Tier(third), TopicID: s.topicIDs[s.names.Tier(third)], Partition: 0, Offset: 0}, deadletter.Tier), "")
			}},
		{name: "an effect on another record's position", want: []string{"1 conservation", "which is a copy of record"},
			plan: func(s *script, l lives) {
				wrong := l.resolved
				wrong.Input = l.waited.Input
				s.event(audit.Resolved, wrong, "")
			}},
		{name: "a changed value", want: []string{"3 bytes", "the value of the copy"},
			plan: func(s *script, l lives) {
				r := find(s, s.names.Poison, "poisoned")
				r.Value = append([]byte(" "), r.Value...)
			}},
		{name: "a changed key", want: []string{"3 bytes", "the key of the copy"},
			plan: func(s *script, l lives) { find(s, s.names.Poison, "poisoned").Key = []byte("other") }},
		{name: "a null header that became empty", want: []string{"3 bytes", "the foreign headers of the copy"},
			plan: func(s *script, l lives) { find(s, s.names.Poison, "poisoned").Headers[1].Value = []byte{} }},
		{name: "foreign headers in another order", want: []string{"3 bytes", "the foreign headers of the copy"},
			plan: func(s *script, l lives) {
				h := find(s, s.names.Poison, "poisoned").Headers
				h[0], h[1] = h[1], h[0]
			}},
		{name: "a copy that grew by more than 64 KiB", want: []string{"5 bounded", "more than its original"},
			plan: func(s *script, l lives) {
				set(find(s, s.names.Poison, "poisoned"), deadletter.HeaderErrorClass, strings.Repeat("x", deadletter.MaxOverhead))
			}},
		{name: "an attempt skipped in a copy", want: []string{"4 attempts", "says another attempt than its event"},
			plan: func(s *script, l lives) { set(find(s, s.names.Poison, "poisoned"), deadletter.HeaderAttempt, "7") }},
		{name: "an attempt skipped in an event", want: []string{"4 attempts", "says attempt 2, want 1"},
			plan: func(s *script, l lives) {
				rec := s.arrive("skipped", 0)
				s.call(rec)
				rec.Attempt = 2
				s.event(audit.RetryScheduled, rec, "failed")
				s.resolve(s.copyTo(s.names.Tier(second), deadletter.Tier, rec))
			}},
		{name: "an attempt counted by a move", want: []string{"4 attempts", "says attempt 1, want 0"},
			plan: func(s *script, l lives) {
				rec := s.arrive("counted", 0)
				rec.Attempt = 1
				s.resolve(s.retier(rec))
			}},
		{name: "a snooze that is not counted", want: []string{"4 attempts", "has no copy with attempt 0 and 1 snoozes"},
			plan: func(s *script, l lives) {
				rec := s.arrive("snoozed", 0)
				s.call(rec)
				s.event(audit.Retiered, rec, policy.ReasonInProgress)
				s.resolve(s.copyTo(s.names.Tier(second), deadletter.Tier, rec))
			}},
		{name: "an answer without a call", want: []string{"4 attempts", "which was called 0 times"},
			plan: func(s *script, l lives) { delete(s.calls, l.resolved.ID) }},
		{name: "a call before its time", want: []string{"2 never early", "called for attempt 2 1ms before its not-before"}, early: 1,
			plan: func(s *script, l lives) {
				s.calls[l.first.ID][1].At = time.UnixMilli(l.second.NotBefore).Add(-time.Millisecond)
			}},
		{name: "a gap in seq", want: []string{"seq", "has the seqs 3 to 4"},
			plan: func(s *script, l lives) {
				s.seq[s.names.Source+"/0"] += 2
				late := s.arrive("late", 0)
				s.resolve(late)
			}},
		{name: "a seq used twice", want: []string{"seq", "two events", "have the seq 2"},
			plan: func(s *script, l lives) {
				s.seq[s.names.Source+"/0"]--
				s.resolve(s.arrive("late", 0))
			}},
		{name: "a secret in the trail", want: []string{"secrecy", "contains secret number 0"},
			plan: func(s *script, l lives) {
				rec := s.arrive("leak", 0)
				rec.Category = "4111-secret"
				s.resolve(rec)
			}},
		{name: "a secret in a header of ours", want: []string{"secrecy", ".dlq.poison/1/0 contains secret number 0"},
			plan: func(s *script, l lives) {
				set(find(s, s.names.Poison, "poisoned"), deadletter.HeaderErrorClass, "4111-secret")
			}},
		{name: "progress that stands still", want: []string{"6 progress", "leaves out the record"},
			plan: func(s *script, l lives) { s.next[s.names.Source][0]-- }},
		{name: "progress beyond the end", want: []string{"6 progress", "is beyond the last stable offset"},
			plan: func(s *script, l lives) { s.next[s.names.Source][0]++ }},
		{name: "an event on the wrong partition of the trail", want: []string{"trail", "belongs on partition"},
			plan: func(s *script, l lives) { find(s, s.names.Audit, l.resolved.ID).Partition ^= 1 }},
		{name: "an event that is not one", want: []string{"trail", "parse audit event"},
			plan: func(s *script, l lives) {
				s.append(&kgo.Record{Topic: s.names.Audit, Key: []byte(l.resolved.ID), Value: []byte("{}")})
			}},
		{name: "an event under another key", want: []string{"trail", "its key is not its recon_id"},
			plan: func(s *script, l lives) { find(s, s.names.Audit, l.resolved.ID).Key = []byte("other") }},
		{name: "a poison copy with another reason than its event", want: []string{"trail", `has the reason "manual"`},
			plan: func(s *script, l lives) { set(find(s, s.names.Poison, "poisoned"), deadletter.HeaderReason, "manual") }},
		{name: "a record escalated twice", want: []string{"1 conservation", "is escalated 2 times"}, doubled: 1,
			plan: func(s *script, l lives) { s.event(audit.Escalated, l.dead, "") }},
		{name: "a poison record that nobody was told of", want: []string{"1 conservation", "is not escalated"}, lost: 1,
			plan: func(s *script, l lives) { drop(s, s.names.Audit, ofType(audit.Escalated, l.dead.ID)) }},
		{name: "a record from nowhere", want: []string{"where there is none"}, lost: 1,
			plan: func(s *script, l lives) {
				ghost := l.resolved
				ghost.ID, ghost.Origin = strings.Repeat("ab", 16), s.names.Source+"/0/55"
				s.event(audit.Retiered, l.resolved, "")
				ghost.Input = s.copyTo(s.names.Tier(third), deadletter.Tier, ghost).Input
				s.resolve(ghost)
			}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := brokers.NewKfake(t)
			s := newScript(t, b)
			tt.plan(s, s.live())
			s.write(t, b)
			report := check(t, b, s.spec())
			faults := strings.Join(report.Faults, "\n")
			for _, want := range tt.want {
				if !strings.Contains(faults, want) {
					t.Errorf("no fault says %q; faults:\n%s", want, faults)
				}
			}
			if report.Lost < tt.lost || report.Doubled < tt.doubled || report.Early != tt.early {
				t.Errorf("lost %d, doubled %d, early %d, want %d, %d, %d; faults:\n%s", report.Lost, report.Doubled, report.Early, tt.lost, tt.doubled, tt.early, faults)
			}
		})
	}
}

func TestAtLeastOnceCountsDuplicatesAndFindsLosses(t *testing.T) {
	b := brokers.NewKfake(t)
	s := newScript(t, b)
	l := s.live()
	s.seq[s.names.Source+"/0"]-- // the same event again, as after a crash before the commit
	s.event(audit.Resolved, l.resolved, "")
	s.arrive("forgotten", 0)
	s.write(t, b)
	spec := s.spec()
	spec.AtLeastOnce = true
	report := check(t, b, spec)
	if report.Doubled != 1 || report.Lost != 1 || report.FaultCount != 1 {
		t.Errorf("doubled %d, lost %d, faults %q, want one duplicate, one loss and one fault", report.Doubled, report.Lost, report.Faults)
	}
}

func TestWhatIsOnItsWayIsNotLostUntilAllShouldBeDone(t *testing.T) {
	b := brokers.NewKfake(t)
	s := newScript(t, b)
	s.live()
	s.arrive("waiting", 0)
	s.retry(s.arrive("retried", 0))
	s.write(t, b)
	offsets := make(kadm.Offsets) // of the source, "waiting" is a hole; the tier's copy has not been read
	s.commit(t, offsets, progress.Progress{Low: 1, Top: 3, Holes: []progress.Range{{From: 1, To: 2}}, Seen: 3}, s.names.Source, 0)
	s.commit(t, offsets, progress.Fresh(0), s.names.Tier(time.Second), 0)
	if err := kadm.NewClient(brokers.Client(t, b.Opts()...)).CommitAllOffsets(t.Context(), s.names.Group, offsets); err != nil {
		t.Fatal(err)
	}
	spec := s.spec()
	spec.Settled = false
	report := check(t, b, spec)
	if err := report.Err(); err != nil {
		t.Error(err)
	}
	if report.InFlight != 2 || report.Holes != 1 || report.Lag != 3 {
		t.Errorf("in flight %d, holes %d, lag %d, want 2, 1 and 3", report.InFlight, report.Holes, report.Lag)
	}
	spec.Settled = true
	if report := check(t, b, spec); report.Lost != 2 {
		t.Errorf("once all should be done, %d are lost, want 2: %v", report.Lost, report.Faults)
	}
}

func TestWhatProgressCallsDoneMustBeDone(t *testing.T) {
	b := brokers.NewKfake(t)
	s := newScript(t, b)
	s.live()
	s.arrive("skipped by progress", 0)
	s.write(t, b)
	spec := s.spec()
	spec.Settled = false
	if report := check(t, b, spec); report.Lost != 1 {
		t.Errorf("lost %d, want 1: %v", report.Lost, report.Faults)
	}
}

func TestWhatRetentionRemovedIsNotLost(t *testing.T) {
	b := brokers.NewKfake(t)
	s := newScript(t, b)
	s.live()
	expired := s.arrive("expired", 0)
	s.event(audit.Expired, expired, "retention")
	s.trim[s.names.Source] = 2
	s.trim[s.names.Tier(time.Second)] = 2
	s.write(t, b)
	report := check(t, b, s.spec())
	if err := report.Err(); err != nil {
		t.Error(err)
	}
	if report.Records != 4 || report.Expired != 1 {
		t.Errorf("records %d, expired %d, want 4 and 1", report.Records, report.Expired)
	}
}

func TestASpecThatNamesNoTopicsIsRefused(t *testing.T) {
	b := brokers.NewKfake(t)
	if _, err := invariants.Check(t.Context(), b.Opts(), invariants.Spec{}); err == nil {
		t.Error("an empty spec was checked")
	}
	spec := invariants.Spec{Sources: []string{"none"}, RetryPrefix: "none.retry.", Poison: "none.poison", Audit: "none.audit"}
	if _, err := invariants.Check(t.Context(), b.Opts(), spec); err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("topics that do not exist: %v, want an error that names one", err)
	}
}
