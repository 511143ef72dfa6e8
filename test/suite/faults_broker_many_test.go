package suite

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/consumer"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

// Progress of all partitions is ready to be committed at the same moment. A commit
// is one batch in the offsets topic: what does not fit it is refused as a whole,
// with UNKNOWN_SERVER_ERROR.
func TestSixHundredPartitionsHaveResultsAtOnce(t *testing.T) {
	t.Parallel()
	const partitions = 600
	b := brokers.NewKafka(t, brokers.Options{})
	gates := map[string]*gate{"one": newGate(), "more": newGate()}
	x := newBench(t, b, 1, 3, []time.Duration{time.Second}, func(ctx context.Context, r *deadletter.Record) deadletter.Outcome {
		round, _, _ := strings.Cut(r.DiscrepancyID, "-")
		gates[round].pass(ctx)
		return mixed(ctx, r)
	})
	x.target[0].Timeout = 20 * time.Second
	x.widen(partitions, x.names.Source)
	p := x.launch(func(o *consumer.Options) { o.Concurrency = partitions })
	x.eventually("all partitions are there", func() bool { return p.owns() == partitions+1 })
	sent := 0
	for _, c := range []struct {
		round string
		room  string // of a batch in the offsets topic, bytes
		fits  bool
	}{
		{"one", "1048588", true},
		{"more", "30000", false}, // a commit of all is more than twice that
	} {
		x.set("max.message.bytes", c.room, "__consumer_offsets")
		var rs []*kgo.Record
		for i := range 2 * partitions {
			rs = append(rs, &kgo.Record{Topic: x.names.Source, Partition: int32(i % partitions), Value: value(fmt.Sprintf("%s-%06d", c.round, i), "")})
		}
		brokers.ProduceTo(t, b, rs...)
		sent += len(rs)
		x.eventually("all slots are taken", func() bool { return p.metric("recon_dlq_inflight", "state", "calling") == partitions })
		began := time.Now()
		gates[c.round].open()
		x.eventually("all records are done", func() bool { return done(p) == sent })
		took := time.Since(began)
		aborted := p.metric("recon_dlq_transactions_total", "result", "aborted")
		t.Logf("%s: done after %s, with %v aborted transactions", c.round, took.Round(time.Millisecond), aborted)
		if took > time.Minute {
			t.Errorf("they were done after %s", took)
		}
		if c.fits != (aborted == 0) {
			t.Errorf("%v transactions were aborted", aborted)
		}
	}
	x.drained(p)
	if rep := x.counted(nil); rep.Records != sent {
		t.Errorf("want %d records: %s", sent, rep)
	}
}
