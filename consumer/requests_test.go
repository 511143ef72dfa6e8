package consumer

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// While a static member that was thought dead joins anew, the group has given
// its name to a member id that it has not been told yet. Heartbeats are then
// refused as if another worker had the name.
func TestAWorkerThatIsJoiningAnewIsNotTakenForAnotherUnderItsName(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	joining, join := make(chan struct{}), make(chan struct{})
	cluster.ControlKey(kmsg.JoinGroup.Int16(), func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.SleepControl(func() {
			close(joining)
			<-join
		})
		return nil, nil, false
	})
	var asked atomic.Int32
	cluster.ControlKey(kmsg.Heartbeat.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		asked.Add(1)
		resp := req.ResponseKind().(*kmsg.HeartbeatResponse)
		resp.ErrorCode = kerr.FencedInstanceID.Code
		return resp, nil, true
	})
	cl, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.ConsumerGroup("g"), kgo.InstanceID("w1"), kgo.ConsumeTopics("s"),
		kgo.HeartbeatInterval(5*time.Second)) // its own ones come later than the test's
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	var failure error
	c := &Consumer{
		o: Options{Group: "g", Instance: "w1", Now: time.Now}, cl: cl, log: slog.New(slog.DiscardHandler), stop: func(err error) { failure = err },
	}
	c.changed = sync.NewCond(&c.mu)
	l := newLane(c, 0)

	<-joining
	if c.replaced(t.Context()) {
		t.Error("its own new membership is taken for another worker")
	}
	if !l.failed(t.Context(), &batch{member: "before"}, kerr.FencedInstanceID, 0) || failure != nil {
		t.Errorf("a commit under its last member id ends it: %v", failure)
	}
	close(join)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	member := ""
	for ; member == ""; member, _ = cl.GroupMetadata() {
		if ctx.Err() != nil {
			t.Fatal("it did not join")
		}
	}
	if !c.replaced(t.Context()) {
		t.Error("the group says that another member has its name, and that is not believed")
	}
	if l.failed(t.Context(), &batch{member: member}, kerr.FencedInstanceID, 0) || !errors.Is(failure, ErrFenced) {
		t.Errorf("a commit under its member id is refused, for another member has its name, and it goes on (%v)", failure)
	}
	if asked.Load() == 0 {
		t.Error("the group was not asked")
	}
}
