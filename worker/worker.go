// Package worker wires the parts to one running process: it verifies the
// cluster, runs the engine and the escalator, and serves metrics and health.
// It is the embeddable API: the commands run and demo use it, and so can Go
// programs that bring handlers of their own. It decides nothing.
package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/plugin/kprom"

	"github.com/recon-dlq/recon-dlq/config"
	"github.com/recon-dlq/recon-dlq/consumer"
	"github.com/recon-dlq/recon-dlq/escalation"
	"github.com/recon-dlq/recon-dlq/internal/kafka"
	"github.com/recon-dlq/recon-dlq/policy"
	"github.com/recon-dlq/recon-dlq/remedy"
)

// Options are what a worker is made of. Only Config is required.
type Options struct {
	Config config.Config
	// Handlers play targets in place of those of the configuration, by the target's name.
	Handlers map[string]remedy.Handler
	Logger   *slog.Logger
	// Listener serves metrics and health in place of Config.Metrics.Listen.
	Listener net.Listener
	// Dialer replaces the network to the brokers, for tests.
	Dialer  func(ctx context.Context, network, host string) (net.Conn, error)
	Client  []kgo.Opt        // what else every Kafka client has, for tests
	Now     func() time.Time // wall clock; default time.Now
	Version string           // for the build info metric
}

// Worker is one process's work. Make it with New, run it once with Run.
type Worker struct {
	o       Options
	log     *slog.Logger
	policy  *policy.Policy
	layout  kafka.Layout
	kafka   kafka.Conn // without what differs by client
	mux     *remedy.Mux
	closers []func()
	reg     *prometheus.Registry
	ready   atomic.Bool // stays once set: an outage of brokers or targets is nothing a restart mends

	mu      sync.Mutex
	engine  *consumer.Consumer
	clients map[string]*prometheus.Registry // of franz-go's metrics, by client role
	addr    net.Addr
}

// Layout is the topics that a configuration needs, and its policy.
func Layout(cfg config.Config) (kafka.Layout, *policy.Policy, error) {
	p, err := policy.New(policy.Options{Rules: cfg.Rules})
	if err != nil {
		return kafka.Layout{}, nil, err
	}
	l := kafka.Layout{
		Sources:     cfg.Source.Topics,
		RetryPrefix: cfg.Topics.Retry,
		HoldPrefix:  cfg.Topics.Hold,
		Poison:      cfg.Topics.Poison,
		Audit:       cfg.Topics.Audit,
		State:       cfg.Topics.State,
		Replication: cfg.Topics.Replication,
		Partitions:  cfg.Topics.Partitions,
	}
	for _, t := range cfg.Targets {
		l.Holds = append(l.Holds, t.Name)
	}
	return l.ForRules(p, cfg.Rules), p, nil
}

// Conn says how to reach the brokers of a configuration. Its secrets and
// certificates are read again where they are needed.
func Conn(cfg config.Config) (kafka.Conn, error) {
	c := kafka.Conn{Brokers: cfg.Kafka.Brokers, ClientID: "recon-dlq"}
	if cfg.Kafka.TLS.Enabled {
		c.TLS = cfg.Kafka.TLS.Load
	}
	s := cfg.Kafka.SASL
	if s.Mechanism == "" {
		return c, nil
	}
	o := kafka.Credentials{Mechanism: s.Mechanism, Username: s.Username, Password: s.ReadPassword}
	if s.TokenURL != "" {
		o.Token = kafka.NewTokens(s.TokenURL, s.Username, s.ReadPassword, s.Scopes).Token
	} else {
		o.Token = func(context.Context) (string, error) { return s.ReadToken() }
	}
	var err error
	c.SASL, err = o.SASL()
	return c, err
}

// New checks the options. It talks to nobody.
func New(o Options) (*Worker, error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	layout, p, err := Layout(o.Config)
	if err != nil {
		return nil, err
	}
	conn, err := Conn(o.Config)
	if err != nil {
		return nil, err
	}
	layout.Groups = []string{o.Config.Kafka.Group, o.Config.Kafka.Group + escalation.GroupSuffix}
	w := &Worker{
		o: o, log: o.Logger, policy: p, layout: layout, kafka: conn, mux: remedy.NewMux(),
		reg: prometheus.NewRegistry(), clients: map[string]*prometheus.Registry{},
	}
	for _, t := range o.Config.Targets {
		h := o.Handlers[t.Name]
		if h == nil {
			made, err := w.handler(t)
			if err != nil {
				w.close()
				return nil, fmt.Errorf("target %q: %w", t.Name, err)
			}
			w.closers = append(w.closers, made.Close)
			h = made
		}
		w.mux.Handle(t.Name, h)
	}
	m := newMetrics(w.reg, o.Version)
	w.kafka.Watch = kafka.NewWatch(w.log, m.refused)
	return w, nil
}

// close closes the handlers that New has made.
func (w *Worker) close() {
	for _, c := range w.closers {
		c()
	}
}

// Run works until ctx ends, then stops in order and returns nil: the engine
// drains and commits, the escalator finishes what is in hand, then the server
// goes. An error says why the worker cannot work, and names the fix.
func (w *Worker) Run(ctx context.Context) error {
	defer w.close()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	stopServer, err := w.serve()
	if err != nil {
		return err
	}
	defer stopServer()

	facts, err := w.verify(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	engine, escalator, err := w.build(facts)
	if err != nil {
		return err
	}
	w.mu.Lock()
	w.engine = engine
	w.mu.Unlock()

	var parts sync.WaitGroup
	run := func(name string, f func(context.Context) error) {
		parts.Go(func() {
			if err := f(ctx); err != nil {
				fail(fmt.Errorf("%s: %w", name, err))
			}
		})
	}
	run("worker", engine.Run)
	run("escalation", escalator.Run)
	go w.becomeReady(ctx, engine)
	parts.Wait()
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) && !errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	return nil
}

// verify reaches the cluster and checks what the worker relies on.
func (w *Worker) verify(ctx context.Context) (kafka.Facts, error) {
	if warning := w.o.Config.Kafka.InTheClear(); warning != "" {
		w.log.Warn("secrets are not protected on their way", "warning", warning)
	}
	conn := w.conn("start")
	if err := kafka.Reach(ctx, conn); err != nil {
		return kafka.Facts{}, err
	}
	cl, err := kgo.NewClient(conn.Opts()...)
	if err != nil {
		return kafka.Facts{}, fmt.Errorf("open a client: %w", err)
	}
	defer cl.Close()
	facts, err := kafka.Verify(ctx, cl, w.layout)
	if err != nil {
		return kafka.Facts{}, err
	}
	for _, warning := range facts.Warnings {
		w.log.Warn("the cluster is not as it should be", "warning", warning)
	}
	return facts, nil
}

func (w *Worker) conn(role string) kafka.Conn {
	c := w.kafka
	c.Dialer, c.Extra, c.Logger = w.o.Dialer, w.o.Client, w.log.With("client", role)
	return c
}

// hooks makes franz-go's own metrics for a new client. A client that is built
// again takes its predecessor's place.
func (w *Worker) hooks(role string) []kgo.Hook {
	reg := prometheus.NewRegistry()
	w.mu.Lock()
	w.clients[role] = reg
	w.mu.Unlock()
	return []kgo.Hook{kprom.NewMetrics("recon_dlq_kafka", kprom.Registry(reg), kprom.WithStaticLabel(prometheus.Labels{"client": role}))}
}

func (w *Worker) build(facts kafka.Facts) (*consumer.Consumer, *escalation.Escalator, error) {
	cfg := w.o.Config
	o := consumer.Options{
		Client:           w.conn("worker").Opts(),
		Hooks:            w.hooks,
		Group:            cfg.Kafka.Group,
		Instance:         cfg.Kafka.Instance,
		ClusterID:        facts.ClusterID,
		Sources:          cfg.Source.Topics,
		RetryPrefix:      cfg.Topics.Retry,
		HoldPrefix:       cfg.Topics.Hold,
		Poison:           cfg.Topics.Poison,
		Audit:            cfg.Topics.Audit,
		AuditPartitions:  facts.Topics[cfg.Topics.Audit].Partitions,
		MaxMessageBytes:  map[string]int32{},
		MetadataLimit:    facts.OffsetMetadataMaxBytes,
		Policy:           w.policy,
		Mux:              w.mux,
		AtLeastOnce:      cfg.Delivery == config.AtLeastOnce,
		FirstStart:       cfg.FirstStart,
		MaxInflightBytes: cfg.Limits.MaxInflightBytes,
		Concurrency:      cfg.Limits.Concurrency,
		Drain:            config.DrainBound,
		Logger:           w.log,
		Registerer:       w.reg,
		Now:              w.o.Now,
	}
	for name, t := range facts.Topics {
		o.MaxMessageBytes[name] = t.MaxMessageBytes
	}
	for _, t := range cfg.Targets {
		o.Targets = append(o.Targets, consumer.Target{Name: t.Name, Timeout: t.Timeout()})
	}
	engine, err := consumer.New(o)
	if err != nil {
		return nil, nil, err
	}
	escalator, err := escalation.New(escalation.Options{
		Conn:      w.conn("escalation").Opts(),
		Group:     cfg.Kafka.Group,
		Instance:  cfg.Kafka.Instance,
		Poison:    cfg.Topics.Poison,
		Audit:     cfg.Topics.Audit,
		Source:    engine.Name(),
		ClusterID: facts.ClusterID,
		Webhook: escalation.WebhookOptions{
			URL: cfg.Escalation.Webhook.URL, Token: cfg.Escalation.Webhook.Token.Reveal(), Timeout: cfg.Escalation.Webhook.Timeout,
		},
		Logger:     w.log,
		Registerer: w.reg,
		Now:        w.o.Now,
	})
	if err != nil {
		return nil, nil, err
	}
	return engine, escalator, nil
}

// becomeReady waits for the first assignment.
func (w *Worker) becomeReady(ctx context.Context, engine *consumer.Consumer) {
	select {
	case <-engine.Assigned():
		w.ready.Store(true)
	case <-ctx.Done():
	}
}

// serve starts the read-only server, if there is to be one.
func (w *Worker) serve() (stop func(), err error) {
	ln := w.o.Listener
	if ln == nil {
		if w.o.Config.Metrics.Listen == "" {
			return func() {}, nil
		}
		if ln, err = net.Listen("tcp", w.o.Config.Metrics.Listen); err != nil {
			return nil, fmt.Errorf("metrics.listen: %w: choose another address, or stop what holds it", err)
		}
	}
	w.mu.Lock()
	w.addr = ln.Addr()
	w.mu.Unlock()
	srv := &http.Server{Handler: w.Handler(), ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second}
	var served sync.WaitGroup
	served.Go(func() {
		if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			w.log.Error("the metrics server ended", "error", err)
		}
	})
	w.log.Info("serving metrics and health", "address", ln.Addr().String())
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if srv.Shutdown(ctx) != nil {
			srv.Close() // it is given up
		}
		served.Wait()
	}, nil
}

// Handler serves /metrics, /healthz and /readyz; all are read-only.
func (w *Worker) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(rw http.ResponseWriter, r *http.Request) {
		promhttp.HandlerFor(w.Gatherer(), promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, Timeout: 10 * time.Second, EnableOpenMetrics: true}).ServeHTTP(rw, r)
	})
	mux.HandleFunc("GET /healthz", func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprintln(rw, "ok") })
	mux.HandleFunc("GET /readyz", func(rw http.ResponseWriter, _ *http.Request) {
		if !w.ready.Load() {
			http.Error(rw, "not ready: no partitions have been assigned yet", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(rw, "ok")
	})
	return mux
}

// Snapshot is the engine's state; false before it exists.
func (w *Worker) Snapshot() (consumer.Snapshot, bool) {
	w.mu.Lock()
	engine := w.engine
	w.mu.Unlock()
	if engine == nil {
		return consumer.Snapshot{}, false
	}
	return engine.Snapshot(), true
}

// Gatherer is all metrics of the worker, those of its present Kafka clients included.
func (w *Worker) Gatherer() prometheus.Gatherer {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := prometheus.Gatherers{w.reg}
	for _, reg := range w.clients {
		all = append(all, reg)
	}
	return all
}

// Addr is where metrics and health are served; nil before Run or without a server.
func (w *Worker) Addr() net.Addr {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.addr
}
