package remedy

import (
	"context"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

func returning(o deadletter.Outcome) HandlerFunc {
	return func(context.Context, *deadletter.Record) deadletter.Outcome { return o }
}

type payloadError struct{ pan string }

func (e payloadError) Error() string { return e.pan }

func TestAPanicIsSuspectAndItsValueIsNotTold(t *testing.T) {
	for name, c := range map[string]struct {
		h    Handler
		want string // in the message
	}{
		"a text":      {HandlerFunc(func(context.Context, *deadletter.Record) deadletter.Outcome { panic("secret") }), "type string"},
		"an error":    {HandlerFunc(func(context.Context, *deadletter.Record) deadletter.Outcome { panic(payloadError{"secret"}) }), "type remedy.payloadError"},
		"nil":         {HandlerFunc(func(context.Context, *deadletter.Record) deadletter.Outcome { panic(nil) }), "type *runtime.PanicNilError"},
		"no handler":  {nil, "runtime"},
		"no function": {HandlerFunc(nil), "runtime"},
	} {
		o := Call(t.Context(), c.h, &deadletter.Record{})
		if o.Class != deadletter.Suspect || o.Cause != CausePanic {
			t.Errorf("%s: class %d, cause %q", name, o.Class, o.Cause)
		}
		if strings.Contains(o.Message, "secret") || !strings.Contains(o.Message, c.want) {
			t.Errorf("%s: message %q, want the type only (%q)", name, o.Message, c.want)
		}
	}
}

func TestAnOutcomeOfTheContractIsLeftAsItIs(t *testing.T) {
	for _, want := range []deadletter.Outcome{
		{Class: deadletter.Resolved},
		{Class: deadletter.Permanent, Cause: "rejected", Message: "no such account", Status: 422, Code: "E42"},
		{Class: deadletter.Suspect, Cause: "http_404", Status: 404, PermanentIfCounted: true},
		{Class: deadletter.Busy, Cause: "busy", RetryAfter: time.Minute},
		{Class: deadletter.InProgress, Cause: "in_progress"},
		{Class: deadletter.Unavailable, Cause: "refused"},
	} {
		if got := Call(t.Context(), returning(want), nil); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
}

func TestAnOutcomeThatBreaksTheContractIsRepaired(t *testing.T) {
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancelLate := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancelLate()
	type outcome = deadletter.Outcome

	for name, c := range map[string]struct {
		ctx   context.Context
		in    outcome
		class deadletter.Class
		cause string
	}{
		"a class that does not exist":     {t.Context(), outcome{Class: 7}, deadletter.Suspect, CauseInvalidOutcome},
		"the last possible class":         {t.Context(), outcome{Class: 255}, deadletter.Suspect, CauseInvalidOutcome},
		"stopped, but nobody stopped it":  {t.Context(), outcome{Class: deadletter.Stopped}, deadletter.Suspect, CauseInvalidOutcome},
		"stopped by the worker":           {cancelled, outcome{Class: deadletter.Stopped}, deadletter.Stopped, CauseStopped},
		"stopped by the deadline":         {late, outcome{Class: deadletter.Stopped}, deadletter.Suspect, CauseTimeout},
		"permanent without a cause":       {t.Context(), outcome{Class: deadletter.Permanent}, deadletter.Permanent, CauseRejected},
		"suspect without a cause":         {t.Context(), outcome{Class: deadletter.Suspect}, deadletter.Suspect, CauseFailed},
		"busy without a cause":            {t.Context(), outcome{Class: deadletter.Busy}, deadletter.Busy, CauseBusy},
		"in progress without a cause":     {t.Context(), outcome{Class: deadletter.InProgress}, deadletter.InProgress, CauseInProgress},
		"unavailable without a cause":     {t.Context(), outcome{Class: deadletter.Unavailable}, deadletter.Unavailable, CauseUnavailable},
		"an error's text as a cause":      {t.Context(), outcome{Class: deadletter.Suspect, Cause: "account 12 not found"}, deadletter.Suspect, CauseInvalidOutcome},
		"a cause that is long":            {t.Context(), outcome{Class: deadletter.Suspect, Cause: strings.Repeat("a", 41)}, deadletter.Suspect, CauseInvalidOutcome},
		"a resolved one with a bad cause": {t.Context(), outcome{Cause: "OK!"}, deadletter.Resolved, CauseInvalidOutcome},
	} {
		got := Call(c.ctx, returning(c.in), nil)
		if got.Class != c.class || got.Cause != c.cause {
			t.Errorf("%s: class %d, cause %q, want %d, %q", name, got.Class, got.Cause, c.class, c.cause)
		}
	}
}

func TestANegativeRetryAfterIsNone(t *testing.T) {
	if o := Call(t.Context(), returning(deadletter.Outcome{Class: deadletter.Busy, RetryAfter: -1}), nil); o.RetryAfter != 0 {
		t.Errorf("retry after %v", o.RetryAfter)
	}
}

func TestACodeThatCannotBeKeptIsDropped(t *testing.T) {
	for code, want := range map[string]string{"E42": "E42", "two words": "", "ü": "", strings.Repeat("x", 65): ""} {
		if o := Call(t.Context(), returning(deadletter.Outcome{Class: deadletter.Suspect, Code: code}), nil); o.Code != want {
			t.Errorf("code %q is %q, want %q", code, o.Code, want)
		}
	}
}

func TestALongMessageIsCut(t *testing.T) {
	o := Call(t.Context(), returning(deadletter.Outcome{Class: deadletter.Suspect, Message: strings.Repeat("ü", 5000) + "\xff"}), nil)
	if len(o.Message) > deadletter.MaxErrorBytes || !utf8.ValidString(o.Message) || o.Message == "" {
		t.Errorf("message of %d bytes, valid %v", len(o.Message), utf8.ValidString(o.Message))
	}
}
