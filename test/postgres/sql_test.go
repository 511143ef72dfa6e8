package postgres

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/remedy"
)

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		os.Exit(child())
	}
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines are left behind:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// schema are the tables of docs/handlers.md, with a count of how often an entry was
// written, and a function that raises what it is told to.
const schema = `
create table recon_dlq_processed (id text primary key, enqueued_ms bigint not null, at timestamptz not null default now());
create table entries (id text primary key, amount bigint not null check (amount >= 0), version bigint not null, writes int not null default 1);
create function fail(code text) returns void language plpgsql as $$ begin raise exception 'as asked' using errcode = code, detail = 'some detail'; end $$;
`

// upsert is the statement of docs/handlers.md.
const upsert = `
insert into entries (id, amount, version)
values (@context::jsonb->>'entry', (@context::jsonb->>'amount')::bigint, @enqueued_ms)
on conflict (id) do update set amount = excluded.amount, version = excluded.version, writes = entries.writes + 1
where entries.version < excluded.version`

// bench is a server with the tables, and a connection to look into them.
type bench struct {
	t      *testing.T
	server *Server
	admin  *pgx.Conn
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{t: t, server: New(t)}
	b.connect()
	b.exec(schema)
	return b
}

func (b *bench) connect() {
	b.t.Helper()
	var err error
	if b.admin, err = pgx.Connect(b.t.Context(), b.server.DSN()); err != nil {
		b.t.Fatal(err)
	}
	admin := b.admin
	b.t.Cleanup(func() { _ = admin.Close(context.Background()) })
}

func (b *bench) exec(sql string) {
	b.t.Helper()
	if _, err := b.admin.Exec(b.t.Context(), sql); err != nil {
		b.t.Fatal(err)
	}
}

// one is the text of the only value that a query gives.
func (b *bench) one(query string) (s string) {
	b.t.Helper()
	if err := b.admin.QueryRow(b.t.Context(), "select coalesce(("+query+")::text, 'null')").Scan(&s); err != nil {
		b.t.Fatal(err)
	}
	return s
}

// target is an SQL target with results to look at.
type target struct {
	*remedy.SQL
	mu      sync.Mutex
	results []remedy.SQLResult
}

func (b *bench) target(statement string, change ...func(*remedy.SQLOptions)) *target {
	b.t.Helper()
	x := &target{}
	o := remedy.SQLOptions{
		DSNFile: b.dsnFile(b.server.DSN()), Statement: statement, Processed: "recon_dlq_processed", Timeout: 20 * time.Second,
		Observe: func(r remedy.SQLResult) {
			x.mu.Lock()
			defer x.mu.Unlock()
			x.results = append(x.results, r)
		},
	}
	for _, f := range change {
		f(&o)
	}
	var err error
	if x.SQL, err = remedy.NewSQL(o); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(x.Close)
	return x
}

func (b *bench) dsnFile(dsn string) string {
	b.t.Helper()
	file := filepath.Join(b.t.TempDir(), "dsn")
	if err := os.WriteFile(file, []byte(dsn+"\n"), 0o600); err != nil {
		b.t.Fatal(err)
	}
	return file
}

// record is one whose context is an entry with an amount, enqueued at that time.
func record(id, entry string, amount int, enqueued int64) *deadletter.Record {
	return &deadletter.Record{
		ID: id, DiscrepancyID: "D-" + id, Category: "amount_differs", Attempt: 2, Enqueued: enqueued,
		Value: fmt.Appendf(nil, `{"discrepancy_id":"D-%s","category":"amount_differs","context":{"entry":%q,"amount":%d},"enqueued_ms":%d}`, id, entry, amount, enqueued),
	}
}

func (x *target) resolves(t *testing.T, r *deadletter.Record, want remedy.SQLResult) {
	t.Helper()
	if o := remedy.Call(t.Context(), x, r); o.Class != deadletter.Resolved {
		t.Fatalf("%s: %+v", r.ID, o)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if got := x.results[len(x.results)-1]; got != want {
		t.Errorf("%s: %s, want %s", r.ID, got, want)
	}
}

func TestPostgresTarget(t *testing.T) {
	b := newBench(t)
	reset := func() { b.exec("truncate entries, recon_dlq_processed") }

	t.Run("a record is applied once however often it comes", func(t *testing.T) {
		reset()
		x := b.target(upsert)
		x.resolves(t, record("a", "E-1", 100, 1000), remedy.SQLApplied)
		x.resolves(t, record("a", "E-1", 100, 1000), remedy.SQLDuplicate)
		x.resolves(t, record("a", "E-1", 100, 1000), remedy.SQLDuplicate)
		if got := b.one("select id || ' ' || amount || ' ' || version || ' ' || writes from entries"); got != "E-1 100 1000 1" {
			t.Errorf("the entry is %q", got)
		}
		if got := b.one("select id || ' ' || enqueued_ms || ' ' || (now() - at < interval '1 minute') from recon_dlq_processed"); got != "a 1000 true" {
			t.Errorf("remembered is %q", got)
		}
	})

	t.Run("newer wins, in whatever order they come", func(t *testing.T) {
		reset()
		x := b.target(upsert)
		x.resolves(t, record("new", "E-1", 200, 2000), remedy.SQLApplied)
		x.resolves(t, record("old", "E-1", 100, 1000), remedy.SQLStale)
		x.resolves(t, record("old", "E-1", 100, 1000), remedy.SQLDuplicate)
		x.resolves(t, record("newer", "E-1", 300, 3000), remedy.SQLApplied)
		if got := b.one("select amount || ' ' || version || ' ' || writes from entries"); got != "300 3000 2" {
			t.Errorf("the entry is %q", got)
		}
	})

	t.Run("many workers at a time apply it once", func(t *testing.T) {
		reset()
		x, y := b.target(upsert), b.target(upsert)
		var wg sync.WaitGroup
		for range 10 {
			for _, x := range []*target{x, y} {
				wg.Go(func() {
					if o := x.Remediate(t.Context(), record("a", "E-1", 100, 1000)); o.Class != deadletter.Resolved {
						t.Errorf("got %+v", o)
					}
				})
			}
		}
		wg.Wait()
		applied := 0
		for _, r := range append(x.results, y.results...) {
			if r == remedy.SQLApplied {
				applied++
			}
		}
		if applied != 1 || len(x.results)+len(y.results) != 20 || b.one("select writes from entries") != "1" {
			t.Errorf("applied %d times of %d, %s writes", applied, len(x.results)+len(y.results), b.one("select writes from entries"))
		}
	})

	t.Run("a statement that fails leaves nothing behind", func(t *testing.T) {
		reset()
		x := b.target(upsert)
		o := x.Remediate(t.Context(), record("a", "E-1", -1, 1000))
		if o.Class != deadletter.Permanent || o.Cause != "sql_23514" || !strings.Contains(o.Message, "violates check constraint") {
			t.Errorf("got %+v", o)
		}
		if got := b.one("select count(*) from recon_dlq_processed"); got != "0" {
			t.Errorf("%s ids are remembered", got)
		}
		x.resolves(t, record("a", "E-1", 1, 1000), remedy.SQLApplied)
	})

	t.Run("every parameter has its value and type", func(t *testing.T) {
		reset()
		b.exec("create table seen (id text, discrepancy_id text, category text, attempt int, enqueued timestamptz, context jsonb, value json)")
		x := b.target("insert into seen values (@id, @discrepancy_id, @category, @attempt, to_timestamp(@enqueued_ms / 1000.0), @context, @value)")
		r := record("it's \"a\" é", "E-1", 100, 1_772_366_400_123)
		r.Value = []byte(`{"Context":1, "context" : {"b":1.50,"a":"é \u00e9"}, "x":1e2}`)
		x.resolves(t, r, remedy.SQLApplied)
		want := `it's "a" é|D-it's "a" é|amount_differs|2|1772366400.123000|{"a": "é é", "b": 1.50}|` + string(r.Value)
		if got := b.one("select concat_ws('|', id, discrepancy_id, category, attempt, extract(epoch from enqueued), context, value) from seen"); got != want {
			t.Errorf("got %s\nwant %s", got, want)
		}
		y := b.target("insert into seen (id, context) values (@id, @context)")
		r = record("no context", "", 0, 0)
		r.Value = []byte("opaque")
		y.resolves(t, r, remedy.SQLApplied)
		if got := b.one("select context is null from seen where id = 'no context'"); got != "true" {
			t.Errorf("a value that is no JSON has a context")
		}
	})

	t.Run("a function is a statement", func(t *testing.T) {
		reset()
		b.exec("create function fix(entry text) returns void language sql as $$ insert into entries values (entry, 1, 1) $$")
		x := b.target("select fix(@context::jsonb->>'entry')")
		x.resolves(t, record("a", "E-1", 100, 1000), remedy.SQLApplied)
		if got := b.one("select count(*) from entries"); got != "1" {
			t.Errorf("%s entries", got)
		}
	})

	t.Run("it works without prepared statements, as a pooler may want it", func(t *testing.T) {
		reset()
		x := b.target(upsert, func(o *remedy.SQLOptions) { o.DSNFile = b.dsnFile(b.server.DSN() + "&default_query_exec_mode=exec") })
		x.resolves(t, record("a", "E-1", 100, 1000), remedy.SQLApplied)
		x.resolves(t, record("a", "E-1", 100, 1000), remedy.SQLDuplicate)
		x.resolves(t, record("b", "E-1", 100, 900), remedy.SQLStale)
	})

	t.Run("it needs no right but to insert ids, and what the statement needs", func(t *testing.T) {
		reset()
		b.exec("create role worker login password 'worker'; grant insert on recon_dlq_processed to worker; grant select, insert, update on entries to worker")
		x := b.target(upsert, func(o *remedy.SQLOptions) {
			o.DSNFile = b.dsnFile(strings.Replace(b.server.DSN(), superUser+":"+b.server.password, "worker:worker", 1))
		})
		x.resolves(t, record("a", "E-1", 100, 1000), remedy.SQLApplied)
		x.resolves(t, record("a", "E-1", 100, 1000), remedy.SQLDuplicate)
	})

	t.Run("processed ids can be in a table of another name", func(t *testing.T) {
		reset()
		b.exec("create schema recon; create table recon.done (like recon_dlq_processed including all)")
		x := b.target(upsert, func(o *remedy.SQLOptions) { o.Processed = "recon.done" })
		x.resolves(t, record("a", "E-1", 100, 1000), remedy.SQLApplied)
		if got := b.one("select count(*) from recon.done") + b.one("select count(*) from recon_dlq_processed"); got != "10" {
			t.Errorf("rows in the one and the other: %s", got)
		}
	})

	t.Run("each SQLSTATE has its outcome", func(t *testing.T) {
		reset()
		x := b.target("select fail(@discrepancy_id)")
		for code, want := range map[string]struct {
			class deadletter.Class
			cause string
		}{
			"22012": {deadletter.Permanent, ""},
			"23505": {deadletter.Permanent, ""},
			"44000": {deadletter.Permanent, ""},
			"P0001": {deadletter.Permanent, ""},
			"40001": {deadletter.InProgress, ""},
			"40P01": {deadletter.InProgress, ""},
			"55P03": {deadletter.InProgress, ""},
			"57014": {deadletter.Suspect, remedy.CauseTimeout},
			"25P03": {deadletter.Suspect, remedy.CauseTimeout},
			"08006": {deadletter.Unavailable, ""},
			"53300": {deadletter.Unavailable, ""},
			"53100": {deadletter.Unavailable, ""},
			"57P01": {deadletter.Unavailable, ""},
			"57P03": {deadletter.Unavailable, ""},
			"25006": {deadletter.Unavailable, ""},
			"0A000": {deadletter.Unavailable, ""},
			"28000": {deadletter.Unavailable, ""},
			"3D000": {deadletter.Unavailable, ""},
			"3F000": {deadletter.Unavailable, ""},
			"42501": {deadletter.Unavailable, ""},
			"42P01": {deadletter.Unavailable, ""},
			"21000": {deadletter.Suspect, ""},
			"54000": {deadletter.Suspect, ""},
			"XX000": {deadletter.Suspect, ""},
			"ZZ999": {deadletter.Suspect, ""},
		} {
			if want.cause == "" {
				want.cause = "sql_" + strings.ToLower(code)
			}
			r := record("a", "E-1", 100, 1000)
			r.DiscrepancyID = code
			o := remedy.Call(t.Context(), x, r)
			if o.Class != want.class || o.Cause != want.cause || o.Message != "as asked (SQLSTATE "+code+"): some detail" {
				t.Errorf("%s: %+v, want %+v", code, o, want)
			}
		}
		if got := b.one("select count(*) from recon_dlq_processed"); got != "0" {
			t.Errorf("%s ids are remembered", got)
		}
	})

	t.Run("a misconfiguration counts no attempt", func(t *testing.T) {
		reset()
		b.exec("create role reader login password 'reader'; grant select on all tables in schema public to reader")
		dsn := b.server.DSN()
		for name, c := range map[string]struct {
			dsn, statement string
			cause          string
		}{
			"a wrong password":     {dsn: strings.Replace(dsn, b.server.password, "hunter2", 1), cause: "sql_28p01"},
			"no such user":         {dsn: strings.Replace(dsn, superUser, "nobody", 1), cause: "sql_28p01"},
			"no such database":     {dsn: strings.Replace(dsn, "/postgres?", "/ledger?", 1), cause: "sql_3d000"},
			"no right":             {dsn: strings.Replace(dsn, superUser+":"+b.server.password, "reader:reader", 1), cause: "sql_42501"},
			"a server without":     {dsn: strings.Replace(dsn, "sslmode=disable", "sslmode=require", 1), cause: remedy.CauseTLS},
			"nobody listens":       {dsn: strings.Replace(dsn, fmt.Sprint(b.server.port), "1", 1), cause: remedy.CauseRefused},
			"a bad name":           {dsn: strings.Replace(dsn, "127.0.0.1", "no-such-host.invalid", 1), cause: remedy.CauseDNS},
			"a metadata service":   {dsn: strings.Replace(dsn, "127.0.0.1", "169.254.169.254", 1), cause: remedy.CauseLinkLocal},
			"a syntax error":       {statement: "insert entries values (@id)", cause: "sql_42601"},
			"no such table":        {statement: "insert into entry values (@id)", cause: "sql_42p01"},
			"several statements":   {statement: "delete from entries where id = @id; delete from entries", cause: "sql_42601"},
			"a type to be guessed": {statement: "insert into entries values (@context->>'entry')", cause: "sql_42725"},
		} {
			x := b.target(cmp.Or(c.statement, upsert), func(o *remedy.SQLOptions) {
				if c.dsn != "" {
					o.DSNFile = b.dsnFile(c.dsn)
				}
			})
			o := x.Remediate(t.Context(), record("a", "E-1", 100, 1000))
			if o.Class != deadletter.Unavailable || o.Cause != c.cause {
				t.Errorf("%s: %+v, want %s", name, o, c.cause)
			}
			if strings.Contains(o.Message, "hunter2") || strings.Contains(o.Message, b.server.password) {
				t.Errorf("%s: the message has the password: %s", name, o.Message)
			}
		}
	})

	t.Run("a parameter of the wrong type is told", func(t *testing.T) {
		reset()
		x := b.target("insert into entries values (@attempt, 1, 1)")
		o := x.Remediate(t.Context(), record("a", "E-1", 100, 1000))
		if o.Class != deadletter.Suspect || o.Cause != remedy.CauseProtocol || !o.PermanentIfCounted {
			t.Errorf("got %+v", o)
		}
		if n := b.one("select count(*) from recon_dlq_processed"); n != "0" {
			t.Errorf("%s ids are remembered", n)
		}
	})

	t.Run("a statement that takes too long is a timeout and is ended", func(t *testing.T) {
		reset()
		x := b.target("select pg_sleep(600) from entries where id <> @id union all select pg_sleep(600)", func(o *remedy.SQLOptions) { o.Timeout = 500 * time.Millisecond })
		began := time.Now()
		if o := x.Remediate(t.Context(), record("a", "E-1", 100, 1000)); o.Class != deadletter.Suspect || o.Cause != remedy.CauseTimeout {
			t.Errorf("got %+v", o)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("it took %s", took)
		}
		b.eventually("the statement has been ended", func() bool {
			return b.one("select count(*) from pg_stat_activity where query like 'select pg_sleep%' and state <> 'idle'") == "0"
		})
	})

	t.Run("what another transaction holds is waited for, no longer than the timeout", func(t *testing.T) {
		reset()
		b.exec("begin; insert into recon_dlq_processed values ('a', 1)")
		x := b.target(upsert, func(o *remedy.SQLOptions) { o.Timeout = 500 * time.Millisecond })
		if o := x.Remediate(t.Context(), record("a", "E-1", 100, 1000)); o.Class != deadletter.Suspect || o.Cause != remedy.CauseTimeout {
			t.Errorf("got %+v", o)
		}
		b.exec("rollback")
		x.resolves(t, record("a", "E-1", 100, 1000), remedy.SQLApplied)
	})

	t.Run("a deadlock is a conflict with others", func(t *testing.T) {
		reset()
		b.exec("insert into entries values ('E-1', 1, 1), ('E-2', 1, 1)")
		x := b.target("select pg_advisory_xact_lock(length(@id)), amount from entries where id = 'E-1' for update")
		// We hold the lock that the target will want, then want its row.
		other, err := pgx.Connect(t.Context(), b.server.DSN()+"&deadlock_timeout=10s")
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close(context.Background())
		if _, err := other.Exec(t.Context(), "begin; select pg_advisory_xact_lock(1)"); err != nil {
			t.Fatal(err)
		}
		outcome := make(chan deadletter.Outcome)
		// The claim comes first: it locks the id.
		go func() { outcome <- x.Remediate(t.Context(), record("a", "E-1", 100, 1000)) }()
		b.eventually("the target waits", func() bool { return b.one("select count(*) from pg_locks where not granted") == "1" })
		held := make(chan error)
		go func() {
			_, err := other.Exec(t.Context(), "insert into recon_dlq_processed values ('a', 1)")
			held <- err
		}()
		o := <-outcome
		if o.Class != deadletter.InProgress || o.Cause != "sql_40p01" {
			t.Errorf("got %+v", o)
		}
		if err := <-held; err != nil {
			t.Error(err)
		}
	})

	t.Run("a call that the worker gives up is stopped and has no effect", func(t *testing.T) {
		reset()
		x := b.target("insert into entries select @id, 1, 1 from pg_sleep(600)")
		ctx, cancel := context.WithCancel(t.Context())
		outcome := make(chan deadletter.Outcome)
		go func() { outcome <- x.Remediate(ctx, record("a", "E-1", 100, 1000)) }()
		b.eventually("the statement runs", func() bool {
			return b.one("select count(*) from pg_stat_activity where wait_event = 'PgSleep'") == "1"
		})
		cancel()
		if o := <-outcome; o.Class != deadletter.Stopped {
			t.Errorf("got %+v", o)
		}
		if o := x.Remediate(ctx, record("a", "E-1", 100, 1000)); o.Class != deadletter.Stopped {
			t.Errorf("a call that had not begun: %+v", o)
		}
		b.exec("select pg_terminate_backend(pid) from pg_stat_activity where wait_event = 'PgSleep'")
		if n := b.one("select count(*) from entries"); n != "0" {
			t.Errorf("%s entries", n)
		}
	})

	t.Run("without a free connection it is busy", func(t *testing.T) {
		reset()
		x := b.target("insert into entries select @id, 1, 1 from pg_sleep(600)", func(o *remedy.SQLOptions) {
			o.DSNFile = b.dsnFile(b.server.DSN() + "&pool_max_conns=1")
			o.Timeout = 10 * time.Second
		})
		ctx, cancel := context.WithCancel(t.Context())
		outcome := make(chan deadletter.Outcome)
		go func() { outcome <- x.Remediate(ctx, record("a", "E-1", 100, 1000)) }()
		b.eventually("the only connection is at work", func() bool {
			return b.one("select count(*) from pg_stat_activity where wait_event = 'PgSleep'") == "1"
		})
		short, cancelShort := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancelShort()
		if o := x.Remediate(short, record("b", "E-1", 100, 1000)); o.Class != deadletter.Busy || o.RetryAfter != time.Second {
			t.Errorf("got %+v", o)
		}
		cancel()
		<-outcome
	})

	t.Run("a changed connection string is used by the next connection", func(t *testing.T) {
		reset()
		file := b.dsnFile(strings.Replace(b.server.DSN(), b.server.password, "hunter2", 1))
		x := b.target(upsert, func(o *remedy.SQLOptions) { o.DSNFile = file })
		if o := x.Remediate(t.Context(), record("a", "E-1", 100, 1000)); o.Cause != "sql_28p01" {
			t.Errorf("got %+v", o)
		}
		for text, want := range map[string]string{"": remedy.CauseCredentials, "postgres://hunter2@:x": remedy.CauseCredentials} {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if o := x.Remediate(t.Context(), record("a", "E-1", 100, 1000)); o.Class != deadletter.Unavailable || o.Cause != want || strings.Contains(o.Message, "hunter2") {
				t.Errorf("%q: %+v", text, o)
			}
		}
		if err := os.WriteFile(file, []byte(b.server.DSN()), 0o600); err != nil {
			t.Fatal(err)
		}
		x.resolves(t, record("a", "E-1", 100, 1000), remedy.SQLApplied)
	})

	t.Run("a server that stops is unavailable, and used again when it is back", func(t *testing.T) {
		reset()
		x := b.target(upsert)
		x.resolves(t, record("a", "E-1", 100, 1000), remedy.SQLApplied)
		for name, end := range map[string]func(){"in order": b.server.Down, "at once": b.server.Kill} {
			end()
			for range 3 {
				o := x.Remediate(t.Context(), record("b"+name, "E-2", 100, 1000))
				if o.Class != deadletter.Unavailable {
					t.Errorf("stopped %s: %+v", name, o)
				}
			}
			if err := b.server.Up(); err != nil {
				t.Fatal(err)
			}
			b.connect()
			x.resolves(t, record("a", "E-1", 100, 1000), remedy.SQLDuplicate)
			x.resolves(t, record("b"+name, "E-"+name, 100, 1000), remedy.SQLApplied)
		}
	})

	t.Run("a server that dies in a call is unavailable", func(t *testing.T) {
		reset()
		x := b.target("insert into entries select @id, 1, 1 from pg_sleep(600)")
		outcome := make(chan deadletter.Outcome)
		go func() { outcome <- x.Remediate(t.Context(), record("a", "E-1", 100, 1000)) }()
		b.eventually("the statement runs", func() bool {
			return b.one("select count(*) from pg_stat_activity where wait_event = 'PgSleep'") == "1"
		})
		b.server.Kill()
		if o := <-outcome; o.Class != deadletter.Unavailable {
			t.Errorf("got %+v", o)
		}
		if err := b.server.Up(); err != nil {
			t.Fatal(err)
		}
		b.connect()
	})
}

// eventually waits until ok.
func (b *bench) eventually(what string, ok func() bool) {
	b.t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.t.Fatalf("waited in vain until %s", what)
		}
	}
}
