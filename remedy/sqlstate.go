package remedy

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

// busyWait is how long a target is left alone when none of its connections becomes free.
const busyWait = time.Second

// notConnected makes the outcome of a call that got no connection: nothing was sent,
// so it is not the record's fault.
func notConnected(ctx, callCtx context.Context, err error) deadletter.Outcome {
	var pg *pgconn.PgError
	switch {
	case ctx.Err() != nil && !timedOut(ctx):
		return stopped()
	case errors.As(err, &pg):
		return unavailable(sqlCause(pg), sqlMessage(pg))
	case callCtx.Err() != nil:
		return unavailable(CauseConnectTimeout, "no connection in time")
	case strings.Contains(err.Error(), "tls error"): // pgconn has no type for it
		return unavailable(CauseTLS, err.Error())
	default:
		return unavailable(connectCause(err), err.Error())
	}
}

// sqlFailure makes the outcome of a transaction that failed.
func sqlFailure(ctx, callCtx context.Context, err error) deadletter.Outcome {
	var pg *pgconn.PgError
	switch {
	case ctx.Err() != nil && !timedOut(ctx):
		return stopped()
	case errors.As(err, &pg):
		return sqlOutcome(pg)
	case callCtx.Err() != nil:
		return suspect(CauseTimeout, "no answer in time")
	case isReset(err), errors.Is(err, pgconn.ErrConnClosed):
		// Nothing is applied, or it was the commit: then the record is a duplicate next time.
		return unavailable(CauseReset, err.Error())
	default: // such as a parameter that does not fit its type
		o := suspect(CauseProtocol, err.Error())
		o.PermanentIfCounted = true
		return o
	}
}

// sqlOutcome makes the outcome of an error that the database answered with, by its
// SQLSTATE (PostgreSQL, appendix A). What concerns more than the record is
// Unavailable: if it is the record nevertheless, it turns out when others succeed.
func sqlOutcome(pg *pgconn.PgError) deadletter.Outcome {
	o := deadletter.Outcome{Class: deadletter.Suspect, Cause: sqlCause(pg), Message: sqlMessage(pg)}
	switch pg.Code {
	case "40001", "40P01", "55P03": // serialization, deadlock, a lock: others are at it
		o.Class = deadletter.InProgress
		return o
	case "57014", "25P03", "25P04": // canceled by a timeout of a statement, of an idle or of a whole transaction
		o.Cause = CauseTimeout
		return o
	case "25006": // read-only: this is not the primary any more
		o.Class = deadletter.Unavailable
		return o
	}
	switch pg.Code[:min(2, len(pg.Code))] {
	case "22", "23", "44", "P0": // data, constraints, a view's check, what a function raises
		o.Class = deadletter.Permanent
	case "08", "53", "57": // connection, resources, shutdown
		o.Class = deadletter.Unavailable
	case "0A", "28", "3D", "3F", "42": // not supported, login, no such database, schema or table, syntax, rights
		o.Class = deadletter.Unavailable
	}
	return o
}

func sqlCause(pg *pgconn.PgError) string { return "sql_" + strings.ToLower(pg.Code) }

// sqlMessage is for people; it can carry field values.
func sqlMessage(pg *pgconn.PgError) string {
	text := pg.Message + " (SQLSTATE " + pg.Code + ")"
	if pg.Detail != "" {
		text += ": " + pg.Detail
	}
	return deadletter.CutError(text)
}
