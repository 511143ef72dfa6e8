package remedy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

// SQLResult is what a call of an SQL target came to that the record is resolved by.
type SQLResult string

// The results. Duplicate and stale leave the database as it was, but that stale
// remembers the id.
const (
	SQLApplied   SQLResult = "applied"
	SQLDuplicate SQLResult = "duplicate" // the id had been processed
	SQLStale     SQLResult = "stale"     // the statement changed nothing: what is there is newer
)

// SQLResults are all of them.
var SQLResults = []SQLResult{SQLApplied, SQLDuplicate, SQLStale}

// SQLOptions configure an SQL target.
type SQLOptions struct {
	// DSNFile holds the connection string: a postgres:// URL or keywords and values. It
	// is read again for every connection; pool_max_conns counts at the start only.
	DSNFile string
	// Statement applies a record: one statement with the parameters @id,
	// @discrepancy_id, @category, @attempt, @enqueued_ms, @context and @value.
	Statement string
	// Processed is the table of processed ids, maybe with a schema and a dot before it.
	Processed string
	// Timeout bounds one call, connecting included; > 0.
	Timeout time.Duration
	// AllowLinkLocal allows link-local addresses and those of metadata services.
	AllowLinkLocal bool
	// Observe, if set, is told of each result.
	Observe func(SQLResult)
}

// SQL is a target that is a PostgreSQL database. One transaction remembers the
// record's id in a table and runs a statement; what has been remembered before is not
// run again, so a record is applied exactly once however often it comes. A statement
// that changes no row says that what is there is newer.
type SQL struct {
	pool       *pgxpool.Pool
	free       chan struct{} // an entry for each connection that is in use
	begin      string
	claim      string
	statement  string
	parameters []string // of statement, by their numbers
	timeout    time.Duration
	observe    func(SQLResult)
}

var _ Handler = (*SQL)(nil)

// parameters give what a statement can name.
var parameters = map[string]func(*deadletter.Record) any{
	"id":             func(r *deadletter.Record) any { return r.ID },
	"discrepancy_id": func(r *deadletter.Record) any { return r.DiscrepancyID },
	"category":       func(r *deadletter.Record) any { return r.Category },
	"attempt":        func(r *deadletter.Record) any { return r.Attempt },
	"enqueued_ms":    func(r *deadletter.Record) any { return r.Enqueued },
	"context":        func(r *deadletter.Record) any { return contextOf(r.Value) },
	"value":          func(r *deadletter.Record) any { return string(r.Value) },
}

const parameterNames = "@id, @discrepancy_id, @category, @attempt, @enqueued_ms, @context and @value"

// NewSQL returns the handler of an SQL target. It connects to nothing yet. The error
// names every fault of the options at once, and nothing of the connection string.
func NewSQL(o SQLOptions) (*SQL, error) {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if o.Processed == "" {
		fault("processed: empty: name a table, such as recon_dlq_processed")
	}
	if o.Timeout <= 0 {
		fault("timeout: must be longer than 0")
	}
	statement, names, err := parseStatement(o.Statement)
	if err != nil {
		fault("statement: %w", err)
	}
	config, err := dsn(o)
	if err != nil {
		faults = append(faults, err)
	}
	if len(faults) > 0 {
		return nil, fmt.Errorf("sql target: %w", errors.Join(faults...))
	}
	config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		fresh, err := dsn(o)
		if err == nil {
			*c = *fresh.ConnConfig
		}
		return err
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, fmt.Errorf("sql target: %w", err)
	}
	if o.Observe == nil {
		o.Observe = func(SQLResult) {}
	}
	ms := max(o.Timeout.Milliseconds(), 1)
	return &SQL{
		pool: pool,
		free: make(chan struct{}, config.MaxConns),
		// A worker that hangs must not hold locks for longer than its call may last.
		begin:      fmt.Sprintf("begin; set local statement_timeout = %d; set local idle_in_transaction_session_timeout = %d", ms, ms),
		claim:      fmt.Sprintf("insert into %s (id, enqueued_ms) values ($1, $2) on conflict do nothing", pgx.Identifier(strings.Split(o.Processed, ".")).Sanitize()),
		statement:  statement,
		parameters: names,
		timeout:    o.Timeout,
		observe:    o.Observe,
	}, nil
}

// parseStatement numbers the parameters of a statement: $1 is the first name.
func parseStatement(text string) (statement string, names []string, err error) {
	if strings.TrimSpace(text) == "" {
		return "", nil, errors.New("is empty")
	}
	known := make(pgx.NamedArgs, len(parameters))
	for name := range parameters {
		known[name] = name
	}
	statement, args, err := known.RewriteQuery(context.Background(), nil, text, nil)
	if err != nil {
		return "", nil, fmt.Errorf("cannot be read: %w", err)
	}
	for _, arg := range args {
		name, ok := arg.(string)
		if !ok {
			return "", nil, errors.New("has a parameter that does not exist: there are " + parameterNames)
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return "", nil, errors.New("has no parameter, so every record would do the same: there are " + parameterNames)
	}
	return statement, names, nil
}

// dsn reads the connection string. The error is a *credentialsError.
func dsn(o SQLOptions) (*pgxpool.Config, error) {
	const option = "dsn_file"
	text, err := readFile(o.DSNFile, maxSecret)
	if err != nil {
		return nil, &credentialsError{option, err}
	}
	// What is wrong with it can quote the password.
	config, err := pgxpool.ParseConfig(strings.TrimSpace(string(text)))
	if err != nil || len(strings.TrimSpace(string(text))) == 0 {
		return nil, &credentialsError{option, errors.New("the file is no connection string: want postgres://user:password@host:5432/database?sslmode=verify-full")}
	}
	c := config.ConnConfig
	c.DialFunc = newDialer(o.AllowLinkLocal).DialContext
	if c.ConnectTimeout <= 0 || c.ConnectTimeout > o.Timeout {
		c.ConnectTimeout = o.Timeout
	}
	if c.RuntimeParams["application_name"] == "" {
		c.RuntimeParams["application_name"] = "recon-dlq"
	}
	return config, nil
}

// Close closes the connections; it waits for calls that are under way.
func (s *SQL) Close() { s.pool.Close() }

// Remediate applies the record. A context that is cancelled gives Stopped, one past
// its deadline a timeout; the transaction then has no effect, but for one whose commit
// was already sent: the record comes again, and is a duplicate.
func (s *SQL) Remediate(ctx context.Context, r *deadletter.Record) deadletter.Outcome {
	if ctx.Err() != nil && !timedOut(ctx) {
		return stopped()
	}
	callCtx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	// What has waited longer would have no time left for its work.
	freeCtx, cancelFree := context.WithTimeout(callCtx, s.timeout/2)
	defer cancelFree()
	select {
	case s.free <- struct{}{}:
		defer func() { <-s.free }()
	case <-freeCtx.Done():
		if ctx.Err() != nil && !timedOut(ctx) {
			return stopped()
		}
		return deadletter.Outcome{
			Class: deadletter.Busy, Cause: CauseBusy, RetryAfter: busyWait,
			Message: fmt.Sprintf("none of %d connections became free in time", cap(s.free)),
		}
	}
	conn, err := s.pool.Acquire(callCtx)
	if err != nil {
		return notConnected(ctx, callCtx, err)
	}
	defer conn.Release()
	result, err := s.apply(callCtx, conn, r)
	if err != nil {
		return sqlFailure(ctx, callCtx, err)
	}
	s.observe(result)
	return deadletter.Outcome{Class: deadletter.Resolved}
}

// apply runs the transaction.
func (s *SQL) apply(ctx context.Context, conn *pgxpool.Conn, r *deadletter.Record) (SQLResult, error) {
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: s.begin})
	if err != nil {
		return "", err
	}
	defer func() { _ = tx.Rollback(ctx) }() // does nothing after a commit
	// Another transaction with this id is waited for here.
	claimed, err := tx.Exec(ctx, s.claim, r.ID, r.Enqueued)
	if err != nil {
		return "", err
	}
	if claimed.RowsAffected() == 0 {
		return SQLDuplicate, nil
	}
	args := make([]any, len(s.parameters))
	for i, name := range s.parameters {
		args[i] = parameters[name](r)
	}
	changed, err := tx.Exec(ctx, s.statement, args...)
	if err != nil {
		return "", err
	}
	if err := tx.Commit(ctx); err != nil {
		return "", err
	}
	if changed.RowsAffected() == 0 {
		return SQLStale, nil
	}
	return SQLApplied, nil
}

// contextOf is the context of a record's value as JSON; nil, SQL's null, where there is none.
func contextOf(value []byte) any {
	var fields map[string]json.RawMessage // not a struct: names are exact
	if json.Unmarshal(value, &fields) != nil || fields["context"] == nil {
		return nil
	}
	return string(fields["context"])
}
