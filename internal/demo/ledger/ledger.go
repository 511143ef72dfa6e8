// Package ledger is a sample target: a small ledger over SQLite that speaks the
// handler contract over HTTP. It has drifted from its source of truth by the
// discrepancies of package data, and settles each when it is called with it.
//
// A fix and the note that its Idempotency-Key is done are one SQL transaction:
// that is what makes a handler safe to call twice. The same key again is
// answered 200 and changes nothing. Changes are guarded by the entry's version,
// so that a late retry loses against a newer fix.
//
// To be a realistic target it can be slow, fail a share of its calls, and go down.
package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/recon-dlq/recon-dlq/internal/demo/data"
)

// Options configure a ledger. The zero value is a ledger in memory with no faults.
type Options struct {
	Path    string        // file of the database; empty: in memory
	Latency time.Duration // of each call
	// FailOnce is the share of records, in [0,1], whose first call is answered
	// 500: a passing fault. Which ones is a hash of their key.
	FailOnce float64
	// Refuse is the share of records, in [0,1], that are always answered 422,
	// beside those that the ledger cannot settle. Which ones is a hash of their key.
	Refuse float64
	// Faults says, by discrepancy id, how many of its first calls are answered
	// 500; a negative number means all of them. A passing fault spares the first
	// call after an outage: that is the probe, and the outage would seem longer.
	Faults map[string]int
	// OnCall, if not nil, is told of each call that is let in. It is called
	// from many goroutines, and must not keep the header.
	OnCall func(http.Header)
}

// Outage is how a ledger is down.
type Outage string

// The outages.
const (
	Refusing    Outage = "refusing"    // nobody listens, open connections are cut
	Unavailable Outage = "unavailable" // every call is answered 503
	Hanging     Outage = "hanging"     // no call is answered until the caller gives up
)

// Stats count what a ledger has done. Calls are those that reached it.
type Stats struct {
	Calls      int64 `json:"calls"`
	Applied    int64 `json:"applied"`     // fixes made
	Replayed   int64 `json:"replayed"`    // calls with a key that was done: nothing was changed
	Superseded int64 `json:"superseded"`  // calls that found the entry as good or newer
	Rejected   int64 `json:"rejected"`    // 400 and 422
	FailedOnce int64 `json:"failed_once"` // 500 by FailOnce
	Faulted    int64 `json:"faulted"`     // 500 by Faults
	Down       int64 `json:"down"`        // answered 503 or left hanging during an outage
	Errors     int64 `json:"errors"`      // 500 for the database's own faults
	// Duplicates are fixes made more than once for one discrepancy. It is zero
	// while callers keep the key of a record the same.
	Duplicates int64 `json:"duplicates"`
}

// Ledger is a target. Make one with New, serve it with Start or through Handler.
type Ledger struct {
	o  Options
	db *sql.DB

	mu     sync.Mutex
	stats  Stats
	failed map[string]bool // keys that were failed once
	faults map[string]int  // by discrepancy id: calls answered 500 by Options.Faults
	outage Outage          // empty: up
	back   bool            // no call has gone well since the last outage
	ended  chan struct{}   // closed when the present outage ends
	addr   string          // that Start was given, or got; empty: not started
	srv    *http.Server    // nil while nobody listens
	done   chan error      // result of srv's Serve
}

const schema = `
CREATE TABLE accounts (
	id       TEXT PRIMARY KEY,
	merchant TEXT NOT NULL,
	currency TEXT NOT NULL
) STRICT;
CREATE TABLE entries (
	id           TEXT PRIMARY KEY,
	account      TEXT NOT NULL REFERENCES accounts (id),
	amount_minor INTEGER NOT NULL,
	currency     TEXT NOT NULL,
	version      INTEGER NOT NULL,
	state        TEXT NOT NULL CHECK (state IN ('booked', 'reversed'))
) STRICT;
CREATE TABLE processed (idempotency_key TEXT PRIMARY KEY) STRICT;
CREATE TABLE fixes (discrepancy_id TEXT PRIMARY KEY, applied INTEGER NOT NULL) STRICT;
`

// New opens a ledger and fills it with the demo's accounts and entries. A file
// that has a ledger already is an error: the demo starts from the same state each time.
func New(o Options) (*Ledger, error) {
	if o.FailOnce < 0 || o.FailOnce > 1 || o.Refuse < 0 || o.Refuse > 1 || o.Latency < 0 {
		return nil, errors.New("ledger: shares are between 0 and 1, and latency is not negative")
	}
	dsn := ":memory:"
	if o.Path != "" {
		dsn = "file:" + o.Path
	}
	db, err := sql.Open("sqlite", dsn+"?_pragma=foreign_keys(1)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_pragma=busy_timeout(5000)")
	if err != nil {
		return nil, fmt.Errorf("ledger: open %s: %w", dsn, err)
	}
	// One connection: in memory each would be a database of its own, and SQLite writes one at a time anyway.
	db.SetMaxOpenConns(1)
	l := &Ledger{o: o, db: db, failed: make(map[string]bool), faults: make(map[string]int)}
	if err := l.fill(context.Background(), data.Accounts(), data.Ledger()); err != nil {
		_ = db.Close()
		return nil, fmt.Errorf("ledger: fill %s: %w", dsn, err)
	}
	return l, nil
}

func (l *Ledger) fill(ctx context.Context, accounts []data.Account, entries []data.Entry) error {
	tx, err := l.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // nothing after Commit
	if _, err := tx.ExecContext(ctx, schema); err != nil {
		return err
	}
	for _, a := range accounts {
		if _, err := tx.ExecContext(ctx, `INSERT INTO accounts VALUES (?, ?, ?)`, a.ID, a.Merchant, a.Currency); err != nil {
			return err
		}
	}
	for _, e := range entries {
		if _, err := tx.ExecContext(ctx, `INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)`, e.ID, e.Account, e.AmountMinor, e.Currency, e.Version, e.State); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// Start listens on addr (host:port; port 0 is any) and serves. Addr says where.
func (l *Ledger) Start(addr string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.addr != "" {
		return errors.New("ledger: already started")
	}
	return l.listen(addr)
}

// listen opens addr and serves in a goroutine that shut waits for. l.mu is held.
func (l *Ledger) listen(addr string) error {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	l.addr = ln.Addr().String()
	srv := &http.Server{Handler: l.Handler(), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
	done := make(chan error, 1)
	l.srv, l.done = srv, done
	go func() { done <- srv.Serve(ln) }()
	return nil
}

// shut cuts all connections and stops listening. It fails if serving had ended
// by itself. l.mu is held.
func (l *Ledger) shut() error {
	if l.srv == nil {
		return nil
	}
	_ = l.srv.Close() // of a listener that nobody will use again
	err := <-l.done
	l.srv = nil
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("ledger: serve: %w", err)
	}
	return nil
}

// Addr is where the ledger listens, host:port; empty before Start.
func (l *Ledger) Addr() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.addr
}

// URL is where records are to be posted; empty before Start.
func (l *Ledger) URL() string {
	if addr := l.Addr(); addr != "" {
		return "http://" + addr + "/remediate"
	}
	return ""
}

// Down begins an outage, or changes the present one. Refusing has no effect on a
// ledger that is used through Handler only.
func (l *Ledger) Down(how Outage) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.up(); err != nil {
		return err
	}
	l.outage = how
	l.ended = make(chan struct{})
	if how == Refusing {
		return l.shut()
	}
	return nil
}

// Up ends the outage. It fails if the address cannot be listened on again.
func (l *Ledger) Up() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.up()
}

func (l *Ledger) up() error {
	if l.outage == "" {
		return nil
	}
	if l.addr != "" && l.srv == nil {
		if err := l.listen(l.addr); err != nil {
			return err
		}
	}
	l.outage, l.back = "", true
	close(l.ended)
	return nil
}

// Outage says how the ledger is down; empty if it is up.
func (l *Ledger) Outage() Outage {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.outage
}

// Close stops serving and closes the database.
func (l *Ledger) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.outage != "" {
		l.outage = ""
		close(l.ended)
	}
	err := l.shut()
	if dbErr := l.db.Close(); dbErr != nil {
		err = errors.Join(err, fmt.Errorf("ledger: close: %w", dbErr))
	}
	return err
}

// Serve runs a ledger on addr until ctx ends. ready, if not nil, is called with
// the address it listens on.
func Serve(ctx context.Context, addr string, o Options, ready func(addr string)) error {
	l, err := New(o)
	if err != nil {
		return err
	}
	if err := l.Start(addr); err != nil {
		return errors.Join(err, l.Close())
	}
	if ready != nil {
		ready(l.Addr())
	}
	l.mu.Lock()
	done := l.done
	l.mu.Unlock()
	select {
	case <-ctx.Done():
	case err := <-done:
		done <- err // for Close, which waits for it and tells it
	}
	return l.Close()
}

// Stats are the counts so far.
func (l *Ledger) Stats(ctx context.Context) (Stats, error) {
	l.mu.Lock()
	s := l.stats
	l.mu.Unlock()
	row := l.db.QueryRowContext(ctx, `SELECT COALESCE(SUM(applied), 0), COALESCE(SUM(applied - 1), 0) FROM fixes`)
	if err := row.Scan(&s.Applied, &s.Duplicates); err != nil {
		return Stats{}, fmt.Errorf("ledger: count fixes: %w", err)
	}
	return s, nil
}

// Snapshot is the ledger's entries, by id.
func (l *Ledger) Snapshot(ctx context.Context) (entries []data.Entry, err error) {
	rows, err := l.db.QueryContext(ctx, `SELECT id, account, amount_minor, currency, version, state FROM entries ORDER BY id`)
	if err != nil {
		return nil, fmt.Errorf("ledger: read entries: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var e data.Entry
		if err := rows.Scan(&e.ID, &e.Account, &e.AmountMinor, &e.Currency, &e.Version, &e.State); err != nil {
			return nil, fmt.Errorf("ledger: read entries: %w", err)
		}
		entries = append(entries, e)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("ledger: read entries: %w", err)
	}
	return entries, nil
}
