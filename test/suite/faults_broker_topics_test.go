package suite

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/recon-dlq/recon-dlq/audit"
	"github.com/recon-dlq/recon-dlq/consumer"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

// remake deletes a topic and makes it again: the same name, another id, nothing in it.
func (x *bench) remake(topic string) {
	x.t.Helper()
	x.remove(topic)
	x.create(topic)
}

func (x *bench) remove(topics ...string) {
	x.t.Helper()
	rs, err := x.admin().DeleteTopics(x.t.Context(), topics...)
	if err == nil {
		err = rs.Error()
	}
	if err != nil {
		x.t.Fatal(err)
	}
}

func (x *bench) create(topics ...string) {
	x.t.Helper()
	for _, topic := range topics {
		configs := map[string]string{"retention.ms": "-1"}
		if topic == x.names.Audit {
			configs["message.timestamp.type"] = "LogAppendTime"
		}
		brokers.Create(x.t, x.b, x.parts, configs, topic)
	}
}

// sendAs produces n source records whose ids begin with a prefix.
func (x *bench) sendAs(prefix string, n int) {
	x.t.Helper()
	values := make([][]byte, n)
	for i := range values {
		values[i] = value(fmt.Sprintf("%s-%06d", prefix, i), "")
	}
	x.send(values...)
}

// told is how often the trail tells of the arrival and of the end of each record
// whose id begins with a prefix. For what a trail of two topics of one name holds:
// positions, which invariants.Check goes by, mean two records there.
func (x *bench) told(prefix string) (arrived, ended map[string]int) {
	x.t.Helper()
	arrived, ended = map[string]int{}, map[string]int{}
	for _, r := range x.read(x.names.Audit) {
		e, err := audit.Parse(r.Value)
		if err != nil {
			x.t.Fatal(err)
		}
		switch id := e.Subject; {
		case !strings.HasPrefix(id, prefix+"-"):
		case e.Type == audit.Enqueued:
			arrived[id]++
		case e.Type == audit.Resolved, e.Type == audit.Poisoned, e.Type == audit.Expired:
			ended[id]++
		}
	}
	return arrived, ended
}

// ends waits until each of n records of a prefix has its end, and checks that it has one only.
func (x *bench) ends(prefix string, n int, ps ...*player) {
	x.t.Helper()
	x.eventually(fmt.Sprintf("the %d records %s-* have their end", n, prefix), func() bool {
		_, ended := x.told(prefix)
		return len(ended) >= n
	})
	x.drained(ps...)
	arrived, ended := x.told(prefix)
	if len(arrived) != n || len(ended) != n {
		x.t.Errorf("%d records arrived, %d ended, want %d", len(arrived), len(ended), n)
	}
	for id, times := range ended {
		if times != 1 || arrived[id] != 1 {
			x.t.Errorf("record %s arrived %d times and ended %d times by the trail", id, arrived[id], times)
		}
	}
}

// A topic of the same name is another topic: nothing that was done of the old one
// is taken for done of the new one, and nothing of the new one is passed over.
func TestATopicThatIsMadeAnewIsAnotherTopic(t *testing.T) {
	each(t, func(t *testing.T, b brokers.Broker) {
		for _, c := range []struct {
			name  string
			topic func(brokers.Names) string
		}{
			{"source", func(n brokers.Names) string { return n.Source }},
			{"tier", func(n brokers.Names) string { return n.Tier(time.Second) }},
			{"poison", func(n brokers.Names) string { return n.Poison }},
			{"audit", func(n brokers.Names) string { return n.Audit }},
		} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				x := newBench(t, b, 2, 3, []time.Duration{time.Second}, mixed)
				x.target[0].Breaker.Threshold = 1000 // what fails once is all that is left while the tier is away
				p := x.launch(instance("w1"))
				x.sendAs("old", 200)
				x.ends("old", 200, p)
				x.remake(c.topic(x.names))
				began := time.Now()
				x.sendAs("new", 300) // beyond where the old source ended
				x.ends("new", 300, p)
				took := time.Since(began)
				t.Logf("done after %s, joined anew %v times", took.Round(time.Millisecond), p.metric("recon_dlq_regroups_total"))
				if took > 90*time.Second {
					t.Errorf("they were done after %s", took)
				}
				if n := p.metric("recon_dlq_regroups_total"); n > 3 {
					t.Errorf("the worker joined anew %v times", n)
				}
				poisoned := 0
				for _, r := range x.read(x.names.Poison) {
					if strings.HasPrefix(discrepancy(r), "new-") {
						poisoned++
					}
				}
				if poisoned != 3 {
					t.Errorf("%d of the new records are in poison, want 3", poisoned)
				}
				if !p.log.has("created again") && !p.log.has("does not take copies") && !p.log.has("transactions failed") {
					t.Errorf("the log does not tell:\n%s", p.log)
				}
				x.restarts(p) // what is committed is the new topic's, too
				x.ends("new", 300)
			})
		}
	})
}

// restarts stops p and starts it again: what is committed holds, and only what
// comes meanwhile is done.
func (x *bench) restarts(p *player) {
	x.t.Helper()
	p.halt()
	next := x.launch(instance("w1"))
	x.sendAs("last", 20)
	x.ends("last", 20, next)
	if n := done(next); n != 20 {
		x.t.Errorf("%d records were done after a restart, want the 20 that came meanwhile", n)
	}
}

// The worker has results of the old topic in hand when the new one is there.
func TestResultsOfATopicThatIsGoneAreNoProgressOfTheNewOne(t *testing.T) {
	each(t, func(t *testing.T, b brokers.Broker) {
		for _, c := range []struct {
			name   string
			later  bool                      // it is made again only when the worker has noticed
			tweaks []func(*consumer.Options) // commits name topics by their ids or, before Kafka 4.3, by their names
		}{
			{"made again at once", false, nil},
			{"made again later", true, nil},
			{"made again at once, old broker", false, []func(*consumer.Options){before43}},
			{"made again at once, old broker, at least once", false, []func(*consumer.Options){before43, atLeastOnce}},
		} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				g := newGate()
				x := newBench(t, b, 1, 3, []time.Duration{time.Second}, func(ctx context.Context, r *deadletter.Record) deadletter.Outcome {
					if strings.HasPrefix(r.DiscrepancyID, "old-") {
						g.pass(ctx)
					}
					return resolved
				})
				x.target[0].Timeout = 20 * time.Second
				p := x.launch(append(c.tweaks, func(o *consumer.Options) { o.Concurrency = 200 })...)
				x.sendAs("old", 100)
				x.eventually("all are in the handler", func() bool { return p.metric("recon_dlq_inflight", "state", "calling") == 100 })
				if !c.later { // nor does it notice before it has committed them, or tried to
					p.wire.treat(func(k kmsg.Key) fate {
						if k == kmsg.Fetch {
							return loseRequest
						}
						return pass
					})
				}
				x.remove(x.names.Source)
				if c.later {
					g.open()
					x.eventually("the worker knows", func() bool { return p.log.has("created again") })
				}
				x.create(x.names.Source)
				x.sendAs("new", 200) // the first of them where the old ones were
				g.open()
				x.eventually("the results are committed or refused", func() bool {
					return done(p) > 0 || p.metric("recon_dlq_transactions_total", "result", "aborted") > 0
				})
				p.wire.treat(nil)
				x.ends("new", 200, p)
				x.eventually("nothing of the old topic is left", func() bool { return p.metric("recon_dlq_inflight") == 0 })
				if n := p.metric("recon_dlq_regroups_total"); n > 3 {
					t.Errorf("the worker joined anew %v times", n)
				}
				p.halt()
				next := x.launch()
				x.sendAs("last", 20)
				x.ends("last", 20, next)
				if n := done(next); n != 20 {
					t.Errorf("%d records were done after a restart, want the 20 that came meanwhile", n)
				}
				x.ends("new", 200)
			})
		}
	})
}

// before43 makes a worker speak as with a broker whose commits know topics by name only.
func before43(o *consumer.Options) {
	o.Client = append(o.Client, kgo.MaxVersions(kversion.V4_0_0()))
}

// Partitions are seen within the metadata age, 15 s, and read from their start.
func TestPartitionsThatAreAddedAreReadFromTheirStart(t *testing.T) {
	each(t, func(t *testing.T, b brokers.Broker) {
		x := newBench(t, b, 2, 3, []time.Duration{time.Second}, mixed)
		p := x.launch()
		x.sendN(50)
		x.eventually("the first records are done", func() bool { return done(p) == 50 })
		x.widen(5, x.names.Source, x.names.Tier(time.Second))
		began := time.Now()
		var rs []*kgo.Record
		for i := range 150 { // before the worker can know
			rs = append(rs, &kgo.Record{Topic: x.names.Source, Partition: int32(2 + i%3), Value: value(fmt.Sprintf("w-%06d", i), "")})
		}
		brokers.ProduceTo(t, b, rs...)
		x.eventually("all records are done", func() bool { return done(p) == 200 })
		took := time.Since(began)
		t.Logf("done after %s", took.Round(time.Millisecond))
		if took > time.Minute { // metadata age 15 s, a rebalance, a tier's delay
			t.Errorf("they were done after %s", took)
		}
		x.drained(p)
		if rep := x.counted(nil); rep.Records != 200 {
			t.Errorf("want 200 records: %s", rep)
		}
	})
}

// kafka-consumer-groups.sh --reset-offsets commits an offset without metadata,
// which would be progress without holes: what it skips would be forgotten.
func TestAResetOfTheGroupNeverSkipsNorRepeatsUnasked(t *testing.T) {
	each(t, func(t *testing.T, b brokers.Broker) {
		for _, c := range []struct {
			name string
			at   func(kadm.ListedOffsets, kadm.ListedOffsets) kadm.ListedOffsets
		}{
			{"to the earliest offset", func(starts, _ kadm.ListedOffsets) kadm.ListedOffsets { return starts }},
			{"to the latest offset", func(_, ends kadm.ListedOffsets) kadm.ListedOffsets { return ends }},
		} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				x := newBench(t, b, 2, 3, []time.Duration{time.Second}, mixed)
				p := x.launch()
				x.sendAs("one", 100)
				x.ends("one", 100, p)

				reset := func() error {
					starts, err := x.admin().ListStartOffsets(t.Context(), x.names.Source)
					if err != nil {
						return err
					}
					ends, err := x.admin().ListEndOffsets(t.Context(), x.names.Source)
					if err != nil {
						return err
					}
					return x.admin().CommitAllOffsets(t.Context(), x.names.Group, c.at(starts, ends).Offsets())
				}
				// While a worker runs the broker refuses it, and the worker goes on.
				if err := reset(); err == nil {
					t.Fatal("the broker took a reset of a group with a worker in it")
				}
				x.sendAs("two", 20)
				x.ends("two", 20, p)
				p.halt()
				x.sendAs("three", 30)
				if err := reset(); err != nil {
					t.Fatal(err)
				}

				next := x.launch()
				x.eventually("the partitions are refused", func() bool {
					return next.metric("recon_dlq_partition_state", "topic", x.names.Source, "state", "refused") == 2
				})
				if !next.log.has("delete the group's offset") {
					t.Errorf("the log does not say what to do:\n%s", next.log)
				}
				next.halt()
				if _, ended := x.told("three"); len(ended) > 0 {
					t.Errorf("%d records were done of partitions that are refused", len(ended))
				}

				// The way out begins again from the start of the log: everything that is
				// still there is done again, and nothing is left out.
				set := kadm.TopicsSet{}
				set.Add(x.names.Source, 0, 1)
				gone, err := x.admin().DeleteOffsets(t.Context(), x.names.Group, set)
				if err == nil {
					err = gone.Error()
				}
				if err != nil {
					t.Fatal(err)
				}
				last := x.launch()
				x.eventually("all that is in the log is done", func() bool { return done(last) == 150 })
				x.drained(last)
				if _, ended := x.told("three"); len(ended) != 30 {
					t.Errorf("%d of the 30 records that came meanwhile have their end", len(ended))
				}
			})
		}
	})
}
