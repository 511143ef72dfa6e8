// Package remedy calls what can fix a discrepancy. A Handler is one target;
// a Mux finds the handler by the target's name, as net/http does by path.
package remedy

import (
	"context"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

// Handler remediates one record. It is called concurrently. It must be
// idempotent by the record's ID: exactly once is promised for copies, audit
// events and progress, at least once for the handler. The context carries the
// deadline of the call; the record is shared and must not be changed.
type Handler interface {
	Remediate(ctx context.Context, r *deadletter.Record) deadletter.Outcome
}

// HandlerFunc is a function that is a Handler.
type HandlerFunc func(ctx context.Context, r *deadletter.Record) deadletter.Outcome

// Remediate calls f.
func (f HandlerFunc) Remediate(ctx context.Context, r *deadletter.Record) deadletter.Outcome {
	return f(ctx, r)
}
