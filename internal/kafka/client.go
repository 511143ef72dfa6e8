// Package kafka is the product's side of the cluster: the options all clients
// share, a reachability check that fails fast, and the topics – what they must
// look like, how to make them so, and what a worker verifies before it starts.
package kafka

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
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
	// TLS gives the configuration of each new connection; nil: not encrypted.
	TLS  func() (*tls.Config, error)
	SASL sasl.Mechanism // nil: none
	// Dialer replaces the network, below TLS; nil: TCP.
	Dialer func(ctx context.Context, network, host string) (net.Conn, error)
	Logger *slog.Logger // nil: silent
	Watch  *Watch       // nil: refused connections are in Logger only
	Hooks  []kgo.Hook
	Extra  []kgo.Opt // what else every client has; it wins
}

// Opts are the options common to all clients. What a client needs beside them
// (group, transactional id, batch sizes) it appends; later options win.
func (c Conn) Opts() []kgo.Opt {
	opts := []kgo.Opt{
		kgo.SeedBrokers(c.Brokers...),
		kgo.Dialer(c.dial),
		kgo.RequestTimeoutOverhead(requestTimeout),
		kgo.RetryTimeout(retryTimeout),
		kgo.MetadataMaxAge(metadataMaxAge),
		// What a broker's operator may collect (KIP-714) is not ours to send unasked.
		kgo.DisableClientMetrics(),
	}
	if c.ClientID != "" {
		opts = append(opts, kgo.ClientID(c.ClientID))
	}
	if c.SASL != nil {
		opts = append(opts, kgo.SASL(c.SASL))
	}
	if c.Logger != nil {
		opts = append(opts, kgo.WithLogger(logger{c.Logger, c}))
	}
	if c.Watch != nil {
		opts = append(opts, kgo.WithHooks(watcher{c}))
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
type logger struct {
	to *slog.Logger
	c  Conn
}

func (l logger) Level() kgo.LogLevel {
	if l.to.Enabled(context.Background(), slog.LevelDebug) {
		return kgo.LogLevelInfo
	}
	return kgo.LogLevelWarn
}

func (l logger) Log(level kgo.LogLevel, msg string, keyvals ...any) {
	if l.c.watched(keyvals) {
		level = kgo.LogLevelInfo // the Watch tells, and does not repeat itself for each attempt
	}
	to := slog.LevelDebug
	switch level {
	case kgo.LogLevelError:
		to = slog.LevelError
	case kgo.LogLevelWarn:
		to = slog.LevelWarn
	}
	l.to.Log(context.Background(), to, "kafka client", append([]any{"says", msg}, keyvals...)...)
}

// watched says whether the error in keyvals is a refusal that the Watch tells of.
func (c Conn) watched(keyvals []any) bool {
	if c.Watch == nil {
		return false
	}
	return slices.ContainsFunc(keyvals, func(v any) bool {
		err, ok := v.(error)
		if !ok {
			return false
		}
		word, _ := c.refused(err)
		return word != ""
	})
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
	quiet.Hooks, quiet.Watch = nil, nil
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
			msgs[i] = fmt.Sprintf("%s: %s", c.Brokers[i], c.reason(err))
		}
		return &ReachError{What: "kafka.brokers: cannot reach " + strings.Join(msgs, "; "), Err: errors.Join(errs...)}
	}
	// Ask through the client once more, so that it learns the advertised addresses.
	if err := cl.Ping(ctx); err != nil {
		return &ReachError{What: "kafka.brokers: " + c.reason(err), Err: err}
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
				strings.Join(c.Brokers, ", "), strings.Join(msgs, ", "), c.reason(errors.Join(errs...))),
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
