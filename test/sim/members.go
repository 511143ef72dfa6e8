package sim

import (
	"context"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/recon-dlq/recon-dlq/test/brokers"
)

// members ends memberships as Apache Kafka's group coordinator does and the fake
// broker does not:
//
//   - A member whose connection is gone when the join phase ends has a session
//     all the same, which times out. The fake broker begins none, and the member
//     keeps its partitions for ever.
//   - The rebalance timeout runs from the beginning of the rebalance. The fake
//     broker begins it anew with each join, so that members that come again and
//     again keep each other from ever joining. Here they are ended, one by one,
//     until the rebalance goes on.
type members struct {
	c     *kfake.Cluster
	cl    *kgo.Client
	count func(kind string)

	mu   sync.Mutex
	seen map[string]*signs // by member id
}

// signs are a member's signs of life.
type signs struct{ any, join, sync time.Time }

// phase is what a group is doing.
type phase struct {
	state      string
	generation int32
	began      time.Time
}

// The timeouts of the worker's groups, and how much later than these members are ended.
const (
	sessionTimeout   = 10 * time.Second
	rebalanceTimeout = 60 * time.Second
	membersLate      = 2 * time.Second
	membersEvery     = 500 * time.Millisecond
)

// watchMembers watches groups until stop is called.
func watchMembers(w *world, groups ...string) (stop func()) {
	m := &members{c: w.b.Cluster, cl: brokers.Client(w.t, w.b.Opts()...), count: w.k.count, seen: map[string]*signs{}}
	for _, key := range []kmsg.Key{kmsg.JoinGroup, kmsg.SyncGroup, kmsg.Heartbeat} {
		m.c.ControlKey(int16(key), func(req kmsg.Request) (kmsg.Response, error, bool) {
			m.see(req)
			return nil, nil, false
		})
	}
	ctx, cancel := context.WithCancel(context.Background())
	end := make(chan struct{})
	go func() {
		defer close(end)
		phases := make([]phase, len(groups))
		for ctx.Err() == nil {
			for i, group := range groups {
				m.expire(ctx, group, &phases[i])
			}
			sleep(ctx, membersEvery)
		}
	}()
	return func() { cancel(); <-end }
}

func (m *members) see(req kmsg.Request) {
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	switch r := req.(type) {
	case *kmsg.JoinGroupRequest:
		m.signs(r.MemberID, now).join = now
	case *kmsg.SyncGroupRequest:
		m.signs(r.MemberID, now).sync = now
	case *kmsg.HeartbeatRequest:
		m.signs(r.MemberID, now)
	}
}

// signs takes note of a sign of life.
func (m *members) signs(member string, now time.Time) *signs {
	s := m.seen[member]
	if s == nil {
		s = &signs{}
		m.seen[member] = s
	}
	s.any = now
	return s
}

// expire ends the memberships in one group that have timed out.
func (m *members) expire(ctx context.Context, group string, p *phase) {
	info := m.c.GroupInfo(group)
	if info == nil {
		return
	}
	now := time.Now()
	if info.State != p.state || info.Epoch != p.generation {
		*p = phase{info.State, info.Epoch, now.Add(-membersEvery)}
	}
	for _, member := range info.Members {
		kind := m.expired(member.MemberID, *p, now)
		if kind == "" {
			continue
		}
		m.count(kind)
		req := kmsg.NewPtrLeaveGroupRequest()
		req.Group = group
		leaving := kmsg.NewLeaveGroupRequestMember()
		leaving.MemberID = member.MemberID
		req.Members = append(req.Members, leaving)
		_, _ = req.RequestWith(ctx, m.cl) // or the next time
		return                            // the group is another one now
	}
}

// expired says by which timeout a membership has ended; empty if it has not.
func (m *members) expired(member string, p phase, now time.Time) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.seen[member]
	if s == nil { // a static member joins without an id
		s = m.signs(member, now)
		s.join = now
	}
	waits := p.state == "PreparingRebalance" && !s.join.Before(p.began) || p.state == "CompletingRebalance" && !s.sync.Before(p.began)
	switch {
	case p.state == "PreparingRebalance" && now.Sub(p.began) > rebalanceTimeout+membersLate:
		return rebalanceOver
	case !waits && now.Sub(s.any) > sessionTimeout+membersLate:
		return sessionOver
	}
	return ""
}
