package suite

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/consumer"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

const sourceLimit = 1 << 20 // max.message.bytes of the source

// sized makes the source take records up to sourceLimit and the worker's own
// topics as much more as the design says, and tells the worker.
func (x *bench) sized() func(*consumer.Options) {
	x.t.Helper()
	x.set("max.message.bytes", strconv.Itoa(sourceLimit), x.names.Source)
	own := append(x.names.Tiers(), x.names.Poison)
	x.set("max.message.bytes", strconv.Itoa(sourceLimit+deadletter.MaxOverhead), own...)
	limits := map[string]int32{x.names.Source: sourceLimit}
	for _, topic := range own {
		limits[topic] = sourceLimit + deadletter.MaxOverhead
	}
	return func(o *consumer.Options) { o.MaxMessageBytes = limits }
}

// noise is a value of about n bytes that does not compress below three quarters.
func noise(id string, n int) []byte {
	raw := make([]byte, n*3/4)
	rand.Read(raw) // never fails, see its documentation
	return value(id, fmt.Sprintf(`"blob":%q`, base64.StdEncoding.EncodeToString(raw)))
}

// upstream produces one record, compressed with codec, in a batch of at most n bytes before that.
func (x *bench) upstream(codec kgo.CompressionCodec, n int32, v []byte) {
	x.t.Helper()
	cl := brokers.Client(x.t, append(brokers.AdminOpts(x.b), kgo.ProducerBatchCompression(codec), kgo.ProducerBatchMaxBytes(n))...)
	r := &kgo.Record{Topic: x.names.Source, Key: []byte("big"), Value: v, Headers: []kgo.RecordHeader{{Key: "trace", Value: nil}}}
	if err := cl.ProduceSync(x.t.Context(), r).FirstErr(); err != nil {
		x.t.Fatal(err)
	}
}

// retryThenPoison fails records named "bad", at the second call for good.
func retryThenPoison(_ context.Context, r *deadletter.Record) deadletter.Outcome {
	switch {
	case !suffix(r.DiscrepancyID, "bad"):
	case r.Attempt == 0:
		return failing
	default:
		return deadletter.Outcome{Class: deadletter.Permanent, Cause: "http_422", Status: 422}
	}
	return resolved
}

func TestTheLargestRecordsOfTheSourceFitEveryCopy(t *testing.T) {
	each(t, func(t *testing.T, b brokers.Broker) {
		for _, c := range []struct {
			name  string
			codec kgo.CompressionCodec
			value []byte
		}{
			{"close to the limit, not compressed", kgo.NoCompression(), noise("d-bad", sourceLimit-600)},
			{"three times the limit before zstd", kgo.ZstdCompression(), value("d-bad", fmt.Sprintf(`"blob":%q`, bytes.Repeat([]byte("0123456789abcdef"), 200_000)))},
		} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				x := newBench(t, b, 1, 3, []time.Duration{time.Second}, retryThenPoison)
				p := x.launch(x.sized())
				x.sendN(20)
				x.upstream(c.codec, min(int32(len(c.value))+2000, 64<<20), c.value)
				x.sendN(20)
				x.eventually("all records are done", func() bool { return done(p) == 41 })
				x.drained(p)
				rep := x.counted(nil) // compares every copy's bytes
				if rep.Poisoned != 1 || rep.Retried != 1 {
					t.Errorf("want one retried and then in poison: %s", rep)
				}
				if n := p.metric("recon_dlq_oversized_total"); n != 0 {
					t.Errorf("recon_dlq_oversized_total is %v", n)
				}
			})
		}
	})
}

func TestARecordWhoseCopyDoesNotFitIsHeldUncutUntilItsTopicTakesIt(t *testing.T) {
	each(t, func(t *testing.T, b brokers.Broker) {
		x := newBench(t, b, 1, 3, []time.Duration{time.Second}, retryThenPoison)
		sized := x.sized()
		x.set("max.message.bytes", "100000", x.names.Poison)
		p := x.launch(sized, func(o *consumer.Options) { o.MaxMessageBytes[x.names.Poison] = 100_000 })
		x.sendN(20)
		x.send(noise("d-bad", 300_000), value("d-small-bad", ""))
		x.sendN(20)
		x.eventually("the others are done", func() bool { return done(p) == 41 && p.metric("dlq_depth") == 1 })
		x.eventually("it is held", func() bool {
			return p.metric("recon_dlq_oversized_total") == 1 && p.metric("recon_dlq_inflight", "state", "oversized") == 1
		})
		if !p.log.has("does not fit its topic") {
			t.Errorf("the log does not tell:\n%s", p.log)
		}
		p.halt()
		next := x.launch(x.sized()) // the operator has raised the limit
		x.eventually("it is done too", func() bool { return done(next) == 1 })
		x.drained(next)
		if rep := x.counted(nil); rep.Poisoned != 2 {
			t.Errorf("want two poisoned records: %s", rep)
		}
	})
}
