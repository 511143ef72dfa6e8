package policy_test

import (
	"fmt"
	"time"

	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/policy"
)

// The way of one record: it is called, fails, waits in a tier and is called again.
func Example() {
	attempts, delays, _ := policy.Preset("balanced")
	p, err := policy.New(policy.Options{Rules: []policy.Rule{
		{Name: "people-decide", Category: "schema_*"},
		{Name: "default", Target: "ledger", Attempts: attempts, Delays: delays, MaxAge: policy.DefaultSLA},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	r := &deadletter.Record{ID: "8d0f", Category: "amount_differs", Enqueued: now.UnixMilli()}
	var ledger policy.Breaker // of the target
	var seen policy.Refusals  // of the record

	d, ledger := p.Admit(ledger, r, now)
	fmt.Println(d.Action, d.Target)

	timeout := deadletter.Outcome{Class: deadletter.Suspect, Cause: "timeout"}
	ledger, seen, ruling := ledger.Observe(r.ID, seen, timeout, d.Epoch, now)
	fmt.Println("held:", ruling.Hold)

	d = p.Decide(r, ruling.Outcome, now)
	fmt.Println(d.Action, policy.FormatDelay(d.Tier), d.Reason, "by rule", d.Rule)

	copied := *r
	copied.Kind, copied.Attempt, copied.NotBefore = deadletter.Tier, 1, d.NotBefore.UnixMilli()
	d, ledger = p.Admit(ledger, &copied, now.Add(time.Second))
	fmt.Println(d.Action, d.Reason)
	d, ledger = p.Admit(ledger, &copied, now.Add(10*time.Second))
	fmt.Println(d.Action, d.Reason)

	refused := deadletter.Outcome{Class: deadletter.Unavailable, Cause: "refused"}
	ledger, _, ruling = ledger.Observe(r.ID, seen, refused, d.Epoch, now.Add(10*time.Second))
	fmt.Println("held:", ruling.Hold, ledger.State(now))

	// Output:
	// call ledger
	// held: false
	// retry 10s failed by rule default
	// wait not_due
	// call due
	// held: true open
}
