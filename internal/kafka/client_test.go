package kafka_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/internal/kafka"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

func TestAReachableClusterIsReached(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		if err := kafka.Reach(t.Context(), kafka.Conn{Brokers: b.Addrs()}); err != nil {
			t.Fatalf("Reach: %v", err)
		}
	})
}

func TestOneBrokerThatAnswersIsEnough(t *testing.T) {
	b := brokers.NewKfake(t)
	conn := kafka.Conn{Brokers: []string{closedPort(t), b.Addrs()[0]}}
	if err := kafka.Reach(t.Context(), conn); err != nil {
		t.Fatalf("Reach: %v", err)
	}
}

func TestEachWrongAddressIsNamedWithItsReason(t *testing.T) {
	refused := closedPort(t)
	web := listen(t, func(c net.Conn) {
		_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n400 Bad Request")
		c.Close()
	})
	hangsUp := listen(t, func(c net.Conn) { c.Close() })

	tests := []struct {
		name    string
		brokers []string
		want    []string
	}{
		{"refused", []string{refused}, []string{"kafka.brokers: cannot reach " + refused + ": connection refused"}},
		{"no such host", []string{"no-such-host.invalid:9092"}, []string{"no-such-host.invalid:9092: no such host"}},
		{"not a broker", []string{web}, []string{web + ": ", "is this a Kafka broker?"}},
		{"hangs up", []string{hangsUp}, []string{"does this port expect TLS or SASL?"}},
		{"all are named", []string{refused, hangsUp}, []string{refused + ": connection refused", hangsUp + ": the broker closed the connection"}},
		{"none", nil, []string{"kafka.brokers: none given"}},
		{"no port number", []string{"localhost:port"}, []string{"kafka.brokers: "}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := kafka.Reach(t.Context(), kafka.Conn{Brokers: tt.brokers})
			if err == nil {
				t.Fatal("Reach found a cluster")
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
		})
	}
}

func TestABrokerThatDoesNotAnswerIsGivenUpWithinSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		err := kafka.Reach(t.Context(), kafka.Conn{
			Brokers: []string{"black.hole:9092"},
			Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			},
		})
		if err == nil || !strings.Contains(err.Error(), "black.hole:9092: no answer in time") {
			t.Fatalf("error is %v", err)
		}
		if took := time.Since(start); took > 11*time.Second {
			t.Errorf("took %s", took)
		}
	})
}

func TestAdvertisedAddressesThatCannotBeReachedAreNamed(t *testing.T) {
	// The cluster listens where it says, but only the seed's address is let through.
	b := brokers.NewKfake(t, kfake.NumBrokers(1))
	seed := "bootstrap.test:9092"
	err := kafka.Reach(t.Context(), kafka.Conn{
		Brokers: []string{seed},
		Dialer: func(ctx context.Context, network, host string) (net.Conn, error) {
			if host != seed {
				return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
			}
			return new(net.Dialer).DialContext(ctx, network, b.Addrs()[0])
		},
	})
	if err == nil {
		t.Fatal("Reach found a usable cluster")
	}
	for _, want := range []string{seed + " answers", b.Addrs()[0], "advertised.listeners"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not say %q", err, want)
		}
	}
	if _, ok := errors.AsType[*kafka.ReachError](err); !ok {
		t.Errorf("error is %T", err)
	}
}

func TestAnInterruptEndsReaching(t *testing.T) {
	stop := errors.New("stopped by the user")
	ctx, cancel := context.WithCancelCause(t.Context())
	err := kafka.Reach(ctx, kafka.Conn{
		Brokers: []string{"black.hole:9092"},
		Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
			cancel(stop)
			<-ctx.Done()
			return nil, ctx.Err()
		},
	})
	if !errors.Is(err, stop) {
		t.Errorf("error is %v", err)
	}
}

func TestTheClientsWarningsAreLoggedWithAConstantMessage(t *testing.T) {
	var out lockedBuffer
	conn := kafka.Conn{Brokers: []string{closedPort(t)}, Logger: slog.New(slog.NewTextHandler(&out, nil))}
	cl, err := kgo.NewClient(conn.Opts()...)
	if err != nil {
		t.Fatal(err)
	}
	if err := cl.Ping(t.Context()); err == nil {
		t.Fatal("a closed port answered")
	}
	cl.Close()
	log := out.String()
	if !strings.Contains(log, "level=WARN") || !strings.Contains(log, `msg="kafka client"`) {
		t.Errorf("log has no warning:\n%s", log)
	}
	if strings.Contains(log, "level=INFO") || strings.Contains(log, "level=DEBUG") {
		t.Errorf("log has more than warnings:\n%s", log)
	}
}

// closedPort is an address on loopback where nobody listens.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// listen serves connections with fn until the test ends.
func listen(t *testing.T, fn func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			// Read what comes first: an unread byte would make the close a reset.
			_, _ = io.ReadAtLeast(c, make([]byte, 4096), 1)
			fn(c)
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().String()
}

// lockedBuffer is a buffer that several goroutines may write.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
