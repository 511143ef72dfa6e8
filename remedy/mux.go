package remedy

import (
	"context"
	"sync"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

// Mux finds the Handler of a target by its name. It is safe for concurrent use;
// its zero value is ready. It is not a Handler itself: which target a record goes
// to is policy's decision, not the record's.
type Mux struct {
	mu       sync.RWMutex
	handlers map[string]Handler
}

// NewMux returns an empty Mux.
func NewMux() *Mux { return new(Mux) }

// Handle registers the handler of a target. As in net/http it panics on a fault of
// the program: an empty name, a nil handler, a name that is taken.
func (m *Mux) Handle(target string, h Handler) {
	if target == "" {
		panic("remedy: a target without a name")
	}
	if f, ok := h.(HandlerFunc); h == nil || ok && f == nil {
		panic("remedy: nil handler for target " + target)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, taken := m.handlers[target]; taken {
		panic("remedy: two handlers for target " + target)
	}
	if m.handlers == nil {
		m.handlers = make(map[string]Handler)
	}
	m.handlers[target] = h
}

// HandleFunc registers a function as the handler of a target; see Handle.
func (m *Mux) HandleFunc(target string, f func(ctx context.Context, r *deadletter.Record) deadletter.Outcome) {
	m.Handle(target, HandlerFunc(f))
}

// Handler returns the handler of a target; ok is false where there is none.
func (m *Mux) Handler(target string) (h Handler, ok bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	h, ok = m.handlers[target]
	return h, ok
}
