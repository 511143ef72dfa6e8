package policy

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

// hundred are policies of 100 rules of which only the last matches, by what the others match on.
func hundred(t testing.TB) map[string]*Policy {
	policies := map[string]*Policy{}
	add := func(name string, rule func(i int, u *Rule)) {
		var rules []Rule
		for i := range 99 {
			u := balanced()
			u.Name = fmt.Sprintf("r%d", i)
			if rule(i, &u); u.Match.moving() {
				u.Target = ""
			}
			rules = append(rules, u)
		}
		policies[name] = mustNew(t, append(rules, balanced())...)
	}
	for name, category := range map[string]string{
		"category/plain": "amount_%02d", "category/prefix": "amount_%02d*", "category/suffix": "*_%02d", "category/both": "a*_%02d_?x",
	} {
		add(name, func(i int, u *Rule) { u.Category = fmt.Sprintf(category, i) })
	}
	add("error", func(i int, u *Rule) {
		u.Match.Error = []string{fmt.Sprintf("error_%02d*", i), fmt.Sprintf("other_%02d", i)}
	})
	add("status", func(i int, u *Rule) { u.Match.Status = []string{fmt.Sprint(510 + i), "404", "410"} })
	add("age", func(i int, u *Rule) { u.Match.OlderThan = time.Duration(1000-i) * time.Hour })
	add("header", func(i int, u *Rule) { u.Match.Header = []HeaderMatch{{"exception", fmt.Sprintf("java.net.E%02d*", i)}} })
	add("mixed", func(i int, u *Rule) {
		u.Category = fmt.Sprintf("amount_%c*", 'a'+i%20)
		switch i % 5 {
		case 0:
			u.Match = Match{Target: []string{"ledger"}, Status: []string{fmt.Sprint(510 + i)}}
		case 1:
			u.Match = Match{Origin: []string{fmt.Sprintf("topic_%d", i)}}
		case 2:
			u.Match = Match{AfterAttempts: 3, Error: []string{fmt.Sprintf("*_%d", i)}}
		case 3:
			u.Match = Match{Header: []HeaderMatch{{fmt.Sprintf("header_%d", i), ""}}}
		case 4:
			u.Match = Match{Value: []ValueMatch{{"$.context.currency", fmt.Sprintf("X%02d", i)}}}
		}
	})
	return policies
}

// decided is a record, and the outcome of its call, that all but the last rule of hundred pass over.
func decided() (*deadletter.Record, deadletter.Outcome) {
	return &deadletter.Record{
		ID: "00112233445566778899aabbccddeeff", Kind: deadletter.Tier, Category: "amount_differs_here", Origin: "recon.dlq/3/1723", Attempt: 1,
		Enqueued: ago(time.Hour), Value: []byte(`{"context":{"currency":"EUR"}}`),
		Foreign: []deadletter.Header{{Key: "exception", Value: []byte("org.springframework.dao.CannotAcquireLockException")}},
	}, deadletter.Outcome{Class: deadletter.Suspect, Cause: "http_503", Status: 503, Code: "LOCKED"}
}

// BenchmarkDecide is one decision by the last of 100 rules: 2 µs at most, and no allocation.
func BenchmarkDecide(b *testing.B) {
	for name, p := range hundred(b) {
		b.Run(name, func(b *testing.B) {
			r, o := decided()
			p.Prepare(r)
			b.ReportAllocs()
			for b.Loop() {
				if d := p.Decide(r, o, t0); d.Action != Retry || d.Rule != "default" {
					b.Fatal(d)
				}
			}
		})
	}
}

// BenchmarkPrepare is the look into a value of 2 KiB, once a record, where rules ask for fields.
func BenchmarkPrepare(b *testing.B) {
	value := []byte(`{"context":{"currency":"EUR","amount":1200,"text":"` + strings.Repeat("some words ", 180) + `"}}`)
	for name, paths := range map[string][]string{"field": {"$.context.currency"}, "filter": {"$[?@.amount > 1000 && @.currency == 'USD']"}} {
		b.Run(name, func(b *testing.B) {
			m := Match{}
			for _, path := range paths {
				m.Value = append(m.Value, ValueMatch{Path: path})
			}
			p := mustNew(b, refine(m), balanced())
			b.ReportAllocs()
			for b.Loop() {
				r := deadletter.Record{Value: value}
				p.Prepare(&r)
			}
		})
	}
}

func TestDecidingByTheLastOfAHundredRulesAllocatesNothing(t *testing.T) {
	for name, p := range hundred(t) {
		r, o := decided()
		p.Prepare(r)
		if n := testing.AllocsPerRun(100, func() { p.Decide(r, o, t0) }); n != 0 {
			t.Errorf("%s: Decide allocates %v times", name, n)
		}
		if n := testing.AllocsPerRun(100, func() { p.Admit(Breaker{}, r, t0) }); n != 0 {
			t.Errorf("%s: Admit allocates %v times", name, n)
		}
	}
}

func TestTenThousandRulesLoadInSeconds(t *testing.T) {
	var rules []Rule
	for i := range MaxRules - 1 {
		u := balanced()
		u.Name = fmt.Sprint(i)
		switch i % 4 {
		case 0:
			u.Category = fmt.Sprintf("category_%05d", i)
		case 1:
			u.Category = fmt.Sprintf("*a?%05d*", i)
		case 2:
			u.Match.Error, u.Match.Status, u.Target = []string{fmt.Sprintf("e%05d*", i), "timeout"}, []string{fmt.Sprint(100 + i%900)}, ""
		case 3:
			u.Match.Header = []HeaderMatch{{"exception", fmt.Sprintf("*E%05d*", i)}}
		}
		rules = append(rules, u)
	}
	start := time.Now()
	p := mustNew(t, append(rules, balanced())...)
	loaded := time.Since(start)
	r, o := decided()
	start = time.Now()
	if d := p.Decide(r, o, t0); d.Rule != "default" {
		t.Errorf("rule %s", d.Rule)
	}
	t.Logf("loaded in %s, decided in %s", loaded, time.Since(start))
	if loaded > time.Minute { // a second or two
		t.Errorf("loading took %s", loaded)
	}
}
