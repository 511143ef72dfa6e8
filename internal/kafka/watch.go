package kafka

import (
	"log/slog"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// refusalLog is how long a refusal that was told is not told again.
const refusalLog = 10 * time.Second

// Watch sees every connection that brokers refuse to running clients, and tells
// of it: a worker whose password was revoked or whose certificate has expired
// tries again for ever, and must not do so silently. It may be shared by clients.
type Watch struct {
	log   *slog.Logger
	count func(word string)

	mu      sync.Mutex
	told    map[string]time.Time // by word
	refused map[string]bool      // by the broker's address: its last refusal was told
}

// NewWatch makes a Watch that logs one line for each of Refusals, at most one in
// 10 s, and calls count, if it is not nil, for each refused connection.
func NewWatch(log *slog.Logger, count func(word string)) *Watch {
	if count == nil {
		count = func(string) {}
	}
	return &Watch{log: log, count: count, told: map[string]time.Time{}, refused: map[string]bool{}}
}

// watcher is the Watch of one Conn's clients.
type watcher struct{ c Conn }

var _ kgo.HookBrokerConnect = watcher{}

// OnBrokerConnect is called by the client with each connection it has opened, or
// with why that failed: dial, TLS, first request or authentication.
func (w watcher) OnBrokerConnect(meta kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	address := net.JoinHostPort(meta.Host, strconv.Itoa(int(meta.Port)))
	if err == nil {
		w.c.Watch.accepted(address)
	} else if word, text := w.c.refused(err); word != "" {
		w.c.Watch.tell(address, word, text)
	}
}

func (w *Watch) tell(address, word, text string) {
	w.count(word)
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if told, ok := w.told[word]; ok && now.Sub(told) < refusalLog {
		return
	}
	w.told[word] = now
	w.refused[address] = true
	w.log.Error("a connection to the brokers is refused; it is tried again", "broker", address, "refusal", word, "reason", text)
}

func (w *Watch) accepted(address string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refused[address] {
		delete(w.refused, address)
		w.log.Info("the broker accepts connections again", "broker", address)
	}
}
