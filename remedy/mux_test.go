package remedy

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

func answering(c deadletter.Class) HandlerFunc {
	return func(context.Context, *deadletter.Record) deadletter.Outcome { return deadletter.Outcome{Class: c} }
}

func TestAMuxFindsEachHandlerByItsTarget(t *testing.T) {
	m := NewMux()
	m.Handle("ledger", answering(deadletter.Busy))
	m.HandleFunc("cards", answering(deadletter.Permanent))
	for target, want := range map[string]deadletter.Class{"ledger": deadletter.Busy, "cards": deadletter.Permanent} {
		h, ok := m.Handler(target)
		if !ok {
			t.Fatalf("no handler for %s", target)
		}
		if got := h.Remediate(t.Context(), nil).Class; got != want {
			t.Errorf("%s answers with class %d, want %d", target, got, want)
		}
	}
	for _, target := range []string{"", "LEDGER", "ledger ", "led"} {
		if h, ok := m.Handler(target); ok || h != nil {
			t.Errorf("a handler for %q", target)
		}
	}
}

func TestTheZeroMuxIsReady(t *testing.T) {
	var m Mux
	if _, ok := m.Handler("ledger"); ok {
		t.Error("a handler in an empty mux")
	}
	m.Handle("ledger", answering(deadletter.Resolved))
	if _, ok := m.Handler("ledger"); !ok {
		t.Error("no handler after Handle")
	}
}

func TestAMuxPanicsOnAFaultOfTheProgram(t *testing.T) {
	var nilHTTP Handler
	for name, register := range map[string]func(m *Mux){
		"a target without a name": func(m *Mux) { m.Handle("", answering(0)) },
		"a nil handler":           func(m *Mux) { m.Handle("a", nilHTTP) },
		"a nil function":          func(m *Mux) { m.HandleFunc("a", nil) },
		"a name that is taken": func(m *Mux) {
			m.Handle("a", answering(0))
			m.Handle("a", answering(0))
		},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			register(NewMux())
		}()
	}
}

func TestAMuxCanBeUsedByManyAtOnce(t *testing.T) {
	m := NewMux()
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() { m.Handle(fmt.Sprint(i), answering(0)) })
		wg.Go(func() { m.Handler(fmt.Sprint(i)) })
	}
	wg.Wait()
	for i := range 20 {
		if _, ok := m.Handler(fmt.Sprint(i)); !ok {
			t.Errorf("no handler for %d", i)
		}
	}
}
