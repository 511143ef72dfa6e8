package consumer

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// starting is a worker that looks whether its group has worked before: there is
// a source record and an event, and no progress. asked is told of each look at it.
func starting(t *testing.T, now func() time.Time) (c *Consumer, cl *kgo.Client, asked <-chan struct{}) {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "s", "s.audit"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	looks := make(chan struct{}, 1000)
	cluster.ControlKey(kmsg.OffsetFetch.Int16(), func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		looks <- struct{}{}
		return nil, nil, false
	})
	cl, err = kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	for _, topic := range []string{"s", "s.audit"} {
		if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte("{}")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	return &Consumer{
		o:   Options{Group: "g", Sources: []string{"s"}, RetryPrefix: "s.retry.", Audit: "s.audit", Now: now},
		log: slog.New(slog.DiscardHandler),
	}, cl, looks
}

func TestAWorkerThatStartsWhileAnotherMakesTheFirstCommitIsNotRefused(t *testing.T) {
	start := time.Date(2026, 12, 1, 9, 0, 0, 0, time.UTC)
	c, cl, asked := starting(t, func() time.Time { return start })
	ended := make(chan error, 1)
	go func() { ended <- c.awaitFirstStart(t.Context(), cl) }()
	<-asked
	select {
	case err := <-ended:
		t.Fatalf("ended with %v at once, want it to look again", err)
	case <-asked:
	}
	offsets := kadm.Offsets{}
	offsets.AddOffset("s", 0, 1, -1)
	if err := kadm.NewClient(cl).CommitAllOffsets(t.Context(), "g", offsets); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("%v, want it to start: the group has progress now", err)
	}
}

func TestAWorkerWhoseGroupStaysWithoutProgressIsRefused(t *testing.T) {
	now := time.Date(2026, 12, 1, 9, 0, 0, 0, time.UTC)
	c, cl, _ := starting(t, func() time.Time {
		now = now.Add(transactionTimeout)
		return now
	})
	if err := c.awaitFirstStart(t.Context(), cl); !errors.Is(err, ErrNoProgress) {
		t.Errorf("%v, want ErrNoProgress", err)
	}
}
