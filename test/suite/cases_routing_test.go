package suite

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/consumer"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/remedy"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

// A retry queue modelled as a table of keys: the second record replaces the
// first. That topics are not compacted is checked at start, see internal/kafka.
func TestC052_TwoRecordsOfOneKeyReachPoisonEachWithItsOwnValue(t *testing.T) {
	t.Parallel()
	b := brokers.NewKfake(t)
	x := newBench(t, b, 3, 3, []time.Duration{200 * time.Millisecond}, func(context.Context, *deadletter.Record) deadletter.Outcome { return failing })
	x.target[0].Breaker.Threshold = 64
	sent := map[string]string{}
	for _, id := range []string{"r-1610", "r-1611"} {
		sent[id] = string(value(id, ""))
		brokers.Produce(t, b, &kgo.Record{Topic: x.names.Source, Key: []byte("acct-17"), Value: []byte(sent[id])})
	}
	w := x.start()
	x.settled(2, w)
	poison := x.read(x.names.Poison)
	if len(poison) != 2 || discrepancy(poison[0]) == discrepancy(poison[1]) {
		t.Fatalf("%d records are in poison", len(poison))
	}
	for _, r := range poison {
		if string(r.Value) != sent[discrepancy(r)] || string(r.Key) != "acct-17" {
			t.Errorf("%s: key %q, value %q", discrepancy(r), r.Key, r.Value)
		}
	}
	x.check(true)
}

// A compacted topic takes no record without a key, and says so with an error
// that sounds as if it would pass. kfake does not refuse such a record.
func TestC053_ATopicThatRefusesARecordIsNamedAndHoldsUpItsOwnCopiesOnly(t *testing.T) {
	t.Parallel()
	b := brokers.SharedKafka(t)
	x := newBench(t, b, 1, 3, second, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
		if strings.HasPrefix(r.DiscrepancyID, "r-162") {
			return deadletter.Outcome{Class: deadletter.Permanent, Cause: "http_422", Status: 422}
		}
		return resolved
	})
	p := x.launch()
	x.eventually("it is assigned", func() bool { return p.owns() > 0 })
	x.set("cleanup.policy", "compact", x.names.Poison) // a worker that starts now would refuse to
	brokers.Produce(t, b, &kgo.Record{Topic: x.names.Source, Value: value("r-1620", "")})
	x.eventually("the refusal is told", func() bool { return p.log.has("a copy is invalid for its topic") && p.log.has("topic="+x.names.Poison) })
	p.is(1, "recon_dlq_inflight", "state", "oversized") // the state of what the broker does not take
	x.sendN(20)
	x.eventually("the others go on", func() bool { return done(p) == 20 })
	p.is(1, "dlq_depth")
	brokers.Produce(t, b, &kgo.Record{Topic: x.names.Source, Key: []byte("k"), Value: value("r-1621", "")})
	x.eventually("a copy that has a key is taken", func() bool { return done(p) == 21 })
	before := p.metric("recon_dlq_transactions_total")
	takes(t.Context(), time.Second)
	if n := p.metric("recon_dlq_transactions_total") - before; n > 0 {
		t.Errorf("%v transactions with nothing else to do: it is tried again", n)
	}
	if n := len(x.read(x.names.Poison)); n != 1 || p.stopped() {
		t.Errorf("%d records are in poison, stopped: %v", n, p.stopped())
	}
	if n := strings.Count(p.log.String(), "a copy is invalid"); n != 1 {
		t.Errorf("it is told %d times", n)
	}
	p.halt()
	x.set("cleanup.policy", "delete", x.names.Poison)
	next := x.launch()
	x.eventually("all are done once the topic is mended", func() bool { return done(p, next) == 22 })
	x.drained(next)
	if rep := x.counted(nil); rep.Poisoned != 2 {
		t.Errorf("%d are in poison", rep.Poisoned)
	}
}

// Retrying gives up the order of a key. That is documented: a handler is told
// when the discrepancy was enqueued, so that an older one can lose.
func TestC055_AnOlderRecordThatComesLaterSaysSoAndNullKeysDoNotShareAPartition(t *testing.T) {
	t.Parallel()
	b := brokers.NewKfake(t)
	var mu sync.Mutex
	var order []deadletter.Record
	x := newBench(t, b, 3, 4, []time.Duration{500 * time.Millisecond}, func(ctx context.Context, r *deadletter.Record) deadletter.Outcome {
		mu.Lock()
		if string(r.Key) == "order-9" {
			order = append(order, *r)
		}
		mu.Unlock()
		takes(ctx, 10*time.Millisecond)
		if r.Attempt == 0 && (r.DiscrepancyID == "r-1630" || strings.HasPrefix(r.DiscrepancyID, "fails")) {
			return failing
		}
		return resolved
	})
	x.target[0].Breaker.Threshold = 64
	ahead := time.Now().Add(-time.Minute).UnixMilli()
	at := func(id string, ms int64) []byte {
		return fmt.Appendf(nil, `{"discrepancy_id":%q,"category":"value_diverged","context":{},"enqueued_ms":%d}`, id, ms)
	}
	brokers.ProduceTo(t, b,
		&kgo.Record{Topic: x.names.Source, Partition: 1, Key: []byte("order-9"), Value: at("r-1630", ahead)},
		&kgo.Record{Topic: x.names.Source, Partition: 1, Key: []byte("order-9"), Value: at("r-1631", ahead+1)})
	const null = 60
	records := make([]*kgo.Record, 0, 2*null)
	for i := range null {
		records = append(records,
			&kgo.Record{Topic: x.names.Source, Value: value("fails-"+strconv.Itoa(i), "")},
			&kgo.Record{Topic: x.names.Source, Value: value("good-"+strconv.Itoa(i), "")})
	}
	brokers.ProduceTo(t, b, records...)
	x.tweak = func(o *consumer.Options) { o.Concurrency = 2 } // so that copies are written in many transactions
	w := x.start()
	x.settled(2+2*null, w)
	x.check(true)
	if len(order) != 3 || order[1].DiscrepancyID != "r-1631" || order[2].DiscrepancyID != "r-1630" {
		t.Fatalf("the calls of the key are %d", len(order))
	}
	if order[2].Enqueued != ahead || order[1].Enqueued != ahead+1 || order[2].Origin != order[0].Origin {
		t.Errorf("the handler cannot tell that r-1630 is older: %d and %d", order[2].Enqueued, order[1].Enqueued)
	}
	partitions := map[int32]int{}
	for _, r := range x.read(x.names.Tiers()...) {
		if discrepancy(r) == "r-1630" {
			if header(r, deadletter.HeaderOrigin) != x.names.Source+"/1/0" || header(r, deadletter.HeaderEnqueued) != strconv.FormatInt(ahead, 10) {
				t.Errorf("the copy's headers are %q", r.Headers)
			}
			continue
		}
		if r.Key != nil {
			t.Errorf("%s has key %q", discrepancy(r), r.Key)
		}
		partitions[r.Partition]++
	}
	if len(partitions) < 2 {
		t.Errorf("copies without a key by partition: %v", partitions)
	}
}

// What is written to a new partition before a client knows of it is lost where
// new partitions start at their end.
func TestC056_WhatIsWrittenToANewPartitionBeforeItIsKnownIsDone(t *testing.T) {
	t.Parallel()
	x := newBench(t, brokers.NewKfake(t), 3, 4, second, func(context.Context, *deadletter.Record) deadletter.Outcome { return resolved })
	p := x.launch(aware)
	x.eventually("it is assigned", func() bool { return p.owns() == 6 })
	began := time.Now()
	x.widen(6, x.names.Source, x.names.Tier(time.Second))
	record := tiered("r-1641", deadletter.HeaderAttempt, "1")
	record.Topic, record.Partition = x.names.Tier(time.Second), 5
	brokers.ProduceTo(t, x.b, &kgo.Record{Topic: x.names.Source, Partition: 4, Value: value("r-1640", "")}, record)
	x.settled(2, p.worker)
	if took := time.Since(began); took > time.Second+5*time.Second {
		t.Errorf("they were done after %s; metadata is read each second", took)
	}
	x.counted(nil)
}

// An open breaker sends everything to the dead-letter sink. There is no way to
// turn the breaker off.
func TestC061_AnOutageOfTheHandlerSendsNothingToPoison(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "handler.sock")
	target, err := remedy.NewHTTP(remedy.HTTPOptions{Unix: socket, Timeout: 5 * time.Second, Source: "suite"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(target.Close)
	x := newBench(t, brokers.NewKfake(t), 3, 4, []time.Duration{200 * time.Millisecond, 500 * time.Millisecond}, target.Remediate)
	x.target[0].Breaker = quickProbes
	p := x.launch()
	for burst := range 3 {
		x.sendN(100)
		x.eventually("all are held", func() bool {
			return p.metric("recon_dlq_inflight", "state", "held")+p.metric("recon_dlq_inflight", "state", "calling") == float64(100*(burst+1))
		})
	}
	tried := p.metric("recon_dlq_attempts_total", "class", "unavailable")
	x.eventually("probes go on", func() bool { return p.metric("recon_dlq_attempts_total", "class", "unavailable") > tried+5 })
	if n := p.metric("recon_dlq_retries_total") + p.metric("poison_total"); n != 0 {
		t.Errorf("%v records went somewhere", n)
	}
	p.is(300, "dlq_depth")

	var served atomic.Int64
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served.Add(1) }))
	server.Listener.Close()
	server.Listener = l
	server.Start()
	t.Cleanup(server.Close)
	x.settled(300, p.worker)
	if rep := x.counted(nil); rep.Poisoned != 0 || rep.Retried != 0 || rep.Resolved != 300 {
		t.Errorf("poisoned %d, retried %d, resolved %d", rep.Poisoned, rep.Retried, rep.Resolved)
	}
	x.onlyAttempt(0)
	if n := served.Load(); n != 300 {
		t.Errorf("the handler served %d calls", n)
	}
}
