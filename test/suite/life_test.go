package suite

import (
	"context"
	"testing"
	"time"

	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

func TestEveryRecordEndsOnceResolvedOrInPoison(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		x := newBench(t, b, 3, 3, []time.Duration{time.Second, 2 * time.Second}, func(_ context.Context, r *deadletter.Record) deadletter.Outcome {
			switch {
			case suffix(r.DiscrepancyID, "7"): // never
				return deadletter.Outcome{Class: deadletter.Permanent, Cause: "http_422", Status: 422}
			case suffix(r.DiscrepancyID, "3") && r.Attempt == 0: // at the second try
				return failing
			case suffix(r.DiscrepancyID, "499"): // never, but not known to be so
				return failing
			}
			return resolved
		})
		x.sendN(1000)
		w := x.start()
		x.settled(1000, w)
		rep := x.check(true)
		if rep.Poisoned != 101 || rep.Resolved != 899 || rep.Retried != 100+2 {
			t.Fatalf("resolved %d, retried %d, poisoned %d", rep.Resolved, rep.Retried, rep.Poisoned)
		}
	})
}
