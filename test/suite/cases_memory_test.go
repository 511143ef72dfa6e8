package suite

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

// Not parallel: it measures the whole process.
func TestC113ABacklogThatGrowsAThousandfoldDoesNotFillTheMemory(t *testing.T) {
	const (
		records = 1000 // 200 KB each, half of them not due for an hour: 200 MB that are 100 KB on the wire
		budget  = 64 << 20
		bound   = 200 << 20
	)
	b := brokers.NewKfake(t, kfake.NumBrokers(3))
	g := newGate()
	defer g.open()
	hour := []time.Duration{time.Hour}
	x := newBench(t, b, 12, 3, hour, func(ctx context.Context, _ *deadletter.Record) deadletter.Outcome {
		if !g.pass(ctx) {
			return deadletter.Outcome{Class: deadletter.Stopped}
		}
		return resolved
	})
	x.target[0].Timeout = 20 * time.Second
	cl := brokers.Client(t, append(brokers.AdminOpts(b), kgo.ProducerBatchCompression(kgo.ZstdCompression()), kgo.MaxBufferedRecords(100))...)
	pad := strings.Repeat("0123456789", 20_000)
	for i := range records {
		id := fmt.Sprintf("d-%06d", i)
		r := &kgo.Record{Topic: x.names.Source, Key: []byte(id), Value: value(id, fmt.Sprintf(`"text":%q`, pad))}
		if i%2 == 1 {
			r.Topic = x.names.Tier(time.Hour)
			r.Headers = []kgo.RecordHeader{{Key: deadletter.HeaderAttempt, Value: []byte("1")}}
		}
		cl.Produce(t.Context(), r, nil)
	}
	if err := cl.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	var before, m runtime.MemStats
	runtime.ReadMemStats(&before)
	routines := runtime.NumGoroutine()

	w := x.start()
	var heap uint64
	var held int64
	var most int
	measure := func() {
		runtime.ReadMemStats(&m)
		heap, held, most = max(heap, m.HeapAlloc), max(held, w.c.Snapshot().InflightBytes), max(most, runtime.NumGoroutine())
	}
	x.eventually("memory is full of records that wait and of records that are stalled", func() bool {
		measure()
		paused := func(topic string) float64 {
			return w.metric("recon_dlq_partition_state", "topic", topic, "state", "paused")
		}
		return paused(x.names.Source) > 0 && paused(x.names.Tier(time.Hour)) > 0
	})
	began := time.Now()
	x.eventually("it stands for a second", func() bool { measure(); return time.Since(began) > time.Second })
	g.open()
	x.eventually("what is due is resolved", func() bool { measure(); return w.metric("resolved_total") == records/2 })
	w.is(records/2, "dlq_depth")

	t.Logf("heap from %d to %d MiB, held %d MiB, goroutines from %d to %d", before.HeapAlloc>>20, heap>>20, held>>20, routines, most)
	if heap > before.HeapAlloc+bound {
		t.Errorf("the heap grew by %d MiB", (heap-before.HeapAlloc)>>20)
	}
	if held > budget || held < budget/8 {
		t.Errorf("held at most %d MiB of a budget of %d MiB", held>>20, budget>>20)
	}
	if most-routines > 64+150 { // handler calls, and what the clients of three brokers need
		t.Errorf("%d goroutines more than before", most-routines)
	}
	w.halt()
	x.check(false)
}
