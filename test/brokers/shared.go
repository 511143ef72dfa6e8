package brokers

import (
	"context"
	"sync"
	"testing"
	"time"
)

const stopTimeout = 30 * time.Second

// What the tests of one binary share; each is started by the first test that wants it.
var (
	sharedKafka     lazy[*Kafka]
	sharedContainer lazy[*Container]
)

type lazy[T any] struct {
	mu      sync.Mutex
	started bool
	value   T
	err     error
}

func (l *lazy[T]) get(start func() (T, error)) (T, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.started {
		l.value, l.err = start()
		l.started = true
	}
	return l.value, l.err
}

// take returns the value if there is one, and forgets it.
func (l *lazy[T]) take() (value T, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	value, ok = l.value, l.started && l.err == nil
	l.started = false
	return value, ok
}

// SharedKafka returns the one-node Apache Kafka that the tests of this binary
// share. Tests on it may run in parallel: they use names of their own, see
// Topics, and do not kill it. The package's TestMain must call Main, which stops it.
func SharedKafka(tb testing.TB) *Kafka {
	tb.Helper()
	if testing.Short() {
		tb.Skip("apache kafka is left out by -short")
	}
	k, err := sharedKafka.get(func() (*Kafka, error) { return StartKafka(Options{}) })
	if err != nil {
		unavailable(tb, true, err)
	}
	return k
}

// SharedContainer returns the Apache Kafka container that the tests of this
// binary share. It skips the test where no Docker engine answers, and with -short.
func SharedContainer(tb testing.TB) *Container {
	tb.Helper()
	if testing.Short() {
		tb.Skip("the container is left out by -short")
	}
	c, err := sharedContainer.get(startContainer)
	if err != nil {
		unavailable(tb, false, err)
	}
	return c
}

func stopShared() {
	if k, ok := sharedKafka.take(); ok {
		k.Stop()
	}
	if c, ok := sharedContainer.take(); ok {
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		c.stop(ctx)
	}
}
