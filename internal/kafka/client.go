// Package kafka is the product's side of the cluster: the options all clients
// share, a reachability check that fails fast, and the topics – what they must
// look like, how to make them so, and what a worker verifies before it starts.
package kafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	dialTimeout    = 5 * time.Second
	requestTimeout = 10 * time.Second
	retryTimeout   = 20 * time.Second
	// A tier that topics apply creates is seen by a pattern subscription only
	// after the group leader's metadata age; Kafka's default is 5 minutes.
	metadataMaxAge = 15 * time.Second
	reachTimeout   = 7 * time.Second
)

// Conn says how to reach the cluster. Every client of the product is made from one.
type Conn struct {
	Brokers  []string // host:port
	ClientID string
	// Dialer replaces the network; nil: TCP with a 5 s timeout.
	Dialer func(ctx context.Context, network, host string) (net.Conn, error)
	Logger *slog.Logger // nil: silent
	Hooks  []kgo.Hook
	Extra  []kgo.Opt // what else every client has; it wins
}

// Opts are the options common to all clients. What a client needs beside them
// (group, transactional id, batch sizes) it appends; later options win.
func (c Conn) Opts() []kgo.Opt {
	opts := []kgo.Opt{
		kgo.SeedBrokers(c.Brokers...),
		kgo.DialTimeout(dialTimeout),
		kgo.RequestTimeoutOverhead(requestTimeout),
		kgo.RetryTimeout(retryTimeout),
		kgo.MetadataMaxAge(metadataMaxAge),
		// What a broker's operator may collect (KIP-714) is not ours to send unasked.
		kgo.DisableClientMetrics(),
	}
	if c.ClientID != "" {
		opts = append(opts, kgo.ClientID(c.ClientID))
	}
	if c.Dialer != nil {
		opts = append(opts, kgo.Dialer(c.Dialer))
	}
	if c.Logger != nil {
		opts = append(opts, kgo.WithLogger(logger{c.Logger}))
	}
	if len(c.Hooks) > 0 {
		opts = append(opts, kgo.WithHooks(c.Hooks...))
	}
	return append(opts, c.Extra...)
}

// closeBound is how long Close waits for a client.
const closeBound = 3 * time.Second

// Close closes a client and waits for that a few seconds at most. A client that
// is joining a group closes only when its join is answered, which can take
// longer than a process has to stop; what is left then ends by itself.
func Close(cl *kgo.Client) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		cl.CloseAllowingRebalance()
	}()
	t := time.NewTimer(closeBound)
	defer t.Stop()
	select {
	case <-closed:
	case <-t.C:
	}
}

// logger passes the client's warnings and errors on. What it says below that
// is of use only with debug logging. The client logs names, numbers and
// errors, never keys or values.
type logger struct{ to *slog.Logger }

func (l logger) Level() kgo.LogLevel {
	if l.to.Enabled(context.Background(), slog.LevelDebug) {
		return kgo.LogLevelInfo
	}
	return kgo.LogLevelWarn
}

func (l logger) Log(level kgo.LogLevel, msg string, keyvals ...any) {
	to := slog.LevelDebug
	switch level {
	case kgo.LogLevelError:
		to = slog.LevelError
	case kgo.LogLevelWarn:
		to = slog.LevelWarn
	}
	l.to.Log(context.Background(), to, "kafka client", append([]any{"says", msg}, keyvals...)...)
}

// Reach asks every configured broker once, at the same time, and returns nil
// as soon as the cluster can be used: one broker answers, and at least one of
// the addresses the cluster advertises can be reached from here. It takes at
// most 7 s per step. The error names each address and what is wrong with it.
func Reach(ctx context.Context, c Conn) error {
	if len(c.Brokers) == 0 {
		return errors.New("kafka.brokers: none given: name at least one host:port")
	}
	quiet := c
	quiet.Logger = nil // the error says it all
	quiet.Hooks = nil
	cl, err := kgo.NewClient(quiet.Opts()...)
	if err != nil {
		return fmt.Errorf("kafka.brokers: %w", err)
	}
	defer cl.Close()

	meta, errs := ask(ctx, cl.SeedBrokers())
	if meta == nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		msgs := make([]string, len(errs))
		for i, err := range errs {
			msgs[i] = fmt.Sprintf("%s: %s", c.Brokers[i], dialReason(err))
		}
		return &ReachError{What: "kafka.brokers: cannot reach " + strings.Join(msgs, "; "), Err: errors.Join(errs...)}
	}
	// Ask through the client once more, so that it learns the advertised addresses.
	if err := cl.Ping(ctx); err != nil {
		return &ReachError{What: "kafka.brokers: " + dialReason(err), Err: err}
	}
	if found, errs := ask(ctx, cl.DiscoveredBrokers()); found == nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var msgs []string
		for _, b := range meta.Brokers {
			msgs = append(msgs, net.JoinHostPort(b.Host, fmt.Sprint(b.Port)))
		}
		return &ReachError{
			What: fmt.Sprintf("kafka.brokers: %s answers, but the addresses the cluster advertises cannot be reached from here (%s: %s): fix advertised.listeners or name resolution",
				strings.Join(c.Brokers, ", "), strings.Join(msgs, ", "), dialReason(errors.Join(errs...))),
			Err: errors.Join(errs...),
		}
	}
	return nil
}

// ReachError says that no broker can be used, and why. Unwrap gives the
// network's own error.
type ReachError struct {
	What string
	Err  error
}

func (e *ReachError) Error() string { return e.What }

// Unwrap returns the network's error.
func (e *ReachError) Unwrap() error { return e.Err }

// ask sends a metadata request for no topics to all brokers at once, without
// retries, and returns the first answer; or all errors, in the brokers' order.
func ask(ctx context.Context, brokers []*kgo.Broker) (*kmsg.MetadataResponse, []error) {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	type answer struct {
		i    int
		resp *kmsg.MetadataResponse
		err  error
	}
	answers := make(chan answer, len(brokers))
	for i, b := range brokers {
		go func() {
			req := kmsg.NewPtrMetadataRequest()
			req.Topics = []kmsg.MetadataRequestTopic{}
			resp, err := b.Request(ctx, req)
			if err != nil {
				answers <- answer{i: i, err: err}
				return
			}
			answers <- answer{i: i, resp: resp.(*kmsg.MetadataResponse)}
		}()
	}
	// All are waited for, the rest cancelled once one has answered: none outlives this call.
	errs := make([]error, len(brokers))
	var first *kmsg.MetadataResponse
	for range brokers {
		a := <-answers
		errs[a.i] = a.err
		if a.err == nil && first == nil {
			first = a.resp
			cancel()
		}
	}
	return first, errs
}

// dialReason says in few words what is wrong with an address, and what to do.
func dialReason(err error) string {
	var dns *net.DNSError
	var eof *kgo.ErrFirstReadEOF
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused: is the broker running, and is the port right?"
	case errors.As(err, &dns):
		return "no such host: check the name"
	case errors.As(err, &eof), errors.Is(err, io.EOF):
		return "the broker closed the connection at once: does this port expect TLS or SASL?"
	case errors.Is(err, kerr.SaslAuthenticationFailed):
		return "authentication failed"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "no route to host: check the address"
	case errors.Is(err, context.DeadlineExceeded), isTimeout(err):
		return "no answer in time: check the address and the firewall, and that a Kafka broker listens there"
	default:
		return err.Error() + ": is this a Kafka broker?"
	}
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}
