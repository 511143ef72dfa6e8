package suite

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/recon-dlq/recon-dlq/consumer"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/internal/kafka"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

// permit gives the worker what it needs, less what is denied: a resource's name
// and the operation.
func (x *bench) permit(denied string, op kadm.ACLOperation) {
	x.t.Helper()
	adm := x.admin()
	allow := func(name string, acl *kadm.ACLBuilder, ops ...kadm.ACLOperation) {
		for _, o := range ops {
			if name == denied && o == op {
				continue
			}
			acl = acl.Operations(o)
			made, err := adm.CreateACLs(x.t.Context(), acl.Allow("User:ANONYMOUS").AllowHosts().ResourcePatternType(kadm.ACLPatternLiteral))
			for _, m := range made {
				err = errors.Join(err, m.Err)
			}
			if err != nil {
				x.t.Fatalf("allow %v on %s: %v", o, name, err)
			}
		}
	}
	topic := func(name string, ops ...kadm.ACLOperation) { allow(name, kadm.NewACLs().Topics(name), ops...) }
	n := x.names
	topic(n.Source, kadm.OpDescribe, kadm.OpRead)
	for _, tier := range n.Tiers() {
		topic(tier, kadm.OpDescribe, kadm.OpRead, kadm.OpWrite)
	}
	topic(n.Poison, kadm.OpDescribe, kadm.OpWrite)
	topic(n.Audit, kadm.OpDescribe, kadm.OpWrite)
	allow(n.Group, kadm.NewACLs().Groups(n.Group), kadm.OpRead, kadm.OpDescribe)
	for _, id := range []string{n.Group + ".w1.0", n.Group + ".w1.1"} { // one a lane
		allow(id, kadm.NewACLs().TransactionalIDs(id), kadm.OpWrite, kadm.OpDescribe)
	}
}

// A missing right ends the worker with a message of its own, and is not tried for
// ever: but one to write a topic. Without it at the start no worker starts; taken
// away later it holds up that topic's copies only, and is waited for.
func TestAMissingRightIsNamedAndEndsTheWorkerOrIsWaitedFor(t *testing.T) {
	t.Parallel()
	b := brokers.NewKafka(t, brokers.Options{Authorizer: true})
	tier := func(n brokers.Names) string { return n.Tier(time.Second) }
	for _, c := range []struct {
		name string
		on   func(brokers.Names) string
		op   kadm.ACLOperation
		want string // in the error; empty: none is missing
	}{
		{name: "none", on: func(brokers.Names) string { return "" }},
		{"READ group", func(n brokers.Names) string { return n.Group }, kadm.OpRead, "no right to READ group"},
		{"READ source", func(n brokers.Names) string { return n.Source }, kadm.OpRead, "no right to READ"},
		{"READ tier", tier, kadm.OpRead, "no right to READ"},
		{"WRITE tier", tier, kadm.OpWrite, "no right to WRITE topic"},
		{"WRITE poison", func(n brokers.Names) string { return n.Poison }, kadm.OpWrite, "no right to WRITE topic"},
		{"WRITE audit", func(n brokers.Names) string { return n.Audit }, kadm.OpWrite, "no right to WRITE topic"},
		{"WRITE transactional id", func(n brokers.Names) string { return n.Group + ".w1.0" }, kadm.OpWrite, "no right to WRITE transactional id"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			x := newBench(t, b, 1, 3, []time.Duration{time.Second}, mixed)
			x.permit(c.on(x.names), c.op)
			x.sendN(100) // among them one for poison and some for the tier
			p := x.launch(instance("w1"))
			if c.want == "" {
				x.eventually("all records are done", func() bool { return done(p) == 100 })
				x.drained(p)
				x.counted(nil)
				return
			}
			if strings.HasPrefix(c.want, "no right to WRITE topic") {
				on := c.on(x.names)
				x.eventually("it is named and counted", func() bool {
					return p.log.has(c.want) && p.log.has(on) && p.metric("recon_dlq_produce_failures_total", "topic", on) > 0
				})
				if on == x.names.Poison { // what has nothing to do with it goes on
					p.is(99, "resolved_total")
				}
				x.permit("", kadm.OpUnknown)
				x.eventually("all records are done", func() bool { return done(p) == 100 })
				x.drained(p)
				x.counted(nil)
				return
			}
			select {
			case <-p.end:
			case <-time.After(20 * time.Second):
				t.Fatalf("a worker without a right goes on:\n%s", p.log)
			}
			if p.err == nil || !strings.Contains(p.err.Error(), c.want) || !strings.Contains(p.err.Error(), "grant it") {
				t.Fatalf("want an error that says %q and to grant it, have %v", c.want, p.err)
			}
			if c.op == kadm.OpRead || c.op == kadm.OpWrite {
				if on := c.on(x.names); !strings.Contains(p.err.Error(), on) {
					t.Errorf("the error does not name %s: %v", on, p.err)
				}
			}
			rep, err := x.report(false, nil)
			if err == nil {
				err = rep.Err()
			}
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// Two workers under one name would fence each other for ever.
func TestOfTwoWorkersWithOneNameOneEndsAndTheOtherWorks(t *testing.T) {
	each(t, func(t *testing.T, b brokers.Broker) {
		for _, c := range []struct {
			name   string
			tweaks []func(*consumer.Options)
		}{{"exactly once", nil}, {"at least once", []func(*consumer.Options){atLeastOnce}}} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				x := newBench(t, b, 3, 3, []time.Duration{time.Second}, slow(10*time.Millisecond))
				x.sendN(1500)
				one := x.launch(append(c.tweaks, instance("w1"))...)
				x.eventually("the first worker works", func() bool { return done(one) >= 100 })
				two := x.launch(append(c.tweaks, instance("w1"))...)
				x.eventually("one of them ends", func() bool { return one.stopped() || two.stopped() })
				loser, winner := one, two
				if two.stopped() {
					loser, winner = two, one
				}
				if !errors.Is(loser.err, consumer.ErrFenced) || !strings.Contains(loser.err.Error(), `"w1"`) {
					t.Fatalf("want ErrFenced that names the instance, have %v", loser.err)
				}
				x.reaches(1500)
				x.drained(winner)
				x.counted(spec(c.tweaks...))
			})
		}
	})
}

// Nobody listens: the worker says so within seconds, and ends when it is told to.
func TestAWorkerWithoutABrokerSaysSoAndCanBeStopped(t *testing.T) {
	t.Parallel()
	const addr = "127.0.0.1:1" // a port that was free a moment ago can be another test's by now
	x := newBench(t, brokers.NewKfake(t), 1, 3, []time.Duration{time.Second}, func(context.Context, *deadletter.Record) deadletter.Outcome { return resolved })
	p := x.launch(func(o *consumer.Options) { o.Client = kafka.Conn{Brokers: []string{addr}}.Opts() })
	began := time.Now()
	x.eventually("it says so", func() bool { return p.log.has("the lane has no producer id yet") && p.log.has(addr) })
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it said so after %s", took)
	}
	began = time.Now()
	p.halt()
	if took := time.Since(began); took > 5*time.Second || p.err != nil {
		t.Errorf("it ended after %s with %v", took, p.err)
	}
}
