package suite

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/recon-dlq/recon-dlq/consumer"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

// A transaction's end was done and its answer is lost; what the broker says then
// of the group's progress leaves out the partitions that were asked for. That is
// no word on them, and not the word that they have no commit.
func TestNoWordOnTheProgressIsNotTakenForNoCommit(t *testing.T) {
	for name, answer := range map[string]func(*kmsg.OffsetFetchResponseGroup){
		"no partitions": func(*kmsg.OffsetFetchResponseGroup) {},
		"no such group": func(g *kmsg.OffsetFetchResponseGroup) { g.ErrorCode = kerr.GroupIDNotFound.Code },
		"it is loading": func(g *kmsg.OffsetFetchResponseGroup) { g.ErrorCode = kerr.CoordinatorLoadInProgress.Code },
		"an empty topic": func(g *kmsg.OffsetFetchResponseGroup) {
			g.Topics = append(g.Topics, kmsg.NewOffsetFetchResponseGroupTopic())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := brokers.NewKfake(t)
			x := newBench(t, b, 2, 3, []time.Duration{time.Second}, slow(5*time.Millisecond))
			var empty atomic.Int32 // answers still to be left empty
			b.Cluster.ControlKey(int16(kmsg.OffsetFetch), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
				b.Cluster.KeepControl()
				req, ok := kreq.(*kmsg.OffsetFetchRequest)
				if !ok || req.Version < 8 || empty.Add(-1) < 0 {
					return nil, nil, false
				}
				resp, _ := req.ResponseKind().(*kmsg.OffsetFetchResponse)
				for _, asked := range req.Groups {
					g := kmsg.NewOffsetFetchResponseGroup()
					g.Group = asked.Group
					answer(&g)
					resp.Groups = append(resp.Groups, g)
				}
				return resp, nil, true
			})
			p := x.launch(instance("w1"), func(o *consumer.Options) { o.Concurrency = 8 })
			x.sendN(300)
			x.eventually("the work is on its way", func() bool { return done(p) >= 40 })
			rule, hits := times(1, kmsg.EndTxn, cutAfter)
			empty.Store(3)
			p.wire.treat(rule)
			sent := x.flow(p, 300, "the end is lost", func() bool { return len(hits) == 1 })
			x.eventually("its outcome is asked for", func() bool { return p.log.has("its outcome is read back") })
			p.wire.heal()
			x.eventually("all records are done", func() bool { return done(p) == sent })
			x.drained(p)
			x.counted(nil)
		})
	}
}
