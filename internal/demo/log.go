package demo

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
)

// brief is a slog.Handler that makes one short line of a record: its message and
// what tells a person something. The run command's log has all attributes.
type brief struct {
	write func(line string)
	attrs []slog.Attr
}

// left out of short lines: ids of machines, and places.
var unsaid = []string{"client", "recon_id", "origin", "poison", "redrive", "error_class", "enqueued", "setting", "target", "held"}

func (*brief) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }

func (b *brief) Handle(_ context.Context, r slog.Record) error {
	var line strings.Builder
	line.WriteString(r.Message)
	add := func(a slog.Attr) bool {
		appendBrief(&line, a)
		return true
	}
	for _, a := range b.attrs {
		add(a)
	}
	r.Attrs(add)
	b.write(line.String())
	return nil
}

func appendBrief(line *strings.Builder, a slog.Attr) {
	v := a.Value.Resolve()
	if v.Kind() == slog.KindGroup {
		for _, in := range v.Group() {
			appendBrief(line, in)
		}
		return
	}
	if slices.Contains(unsaid, a.Key) {
		return
	}
	sep := ", "
	if !strings.Contains(line.String(), ": ") {
		sep = ": "
	}
	line.WriteString(sep)
	if v.Kind() != slog.KindString { // a bare number says nothing
		line.WriteString(a.Key + " ")
	}
	line.WriteString(v.String())
}

func (b *brief) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &brief{write: b.write, attrs: append(slices.Clone(b.attrs), attrs...)}
}

func (b *brief) WithGroup(string) slog.Handler { return b }

// ring keeps the last lines of a log. It is safe for concurrent use.
type ring struct {
	mu    sync.Mutex
	lines []string
}

const keepLines = 40

func (r *ring) add(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.lines) == keepLines {
		r.lines = slices.Delete(r.lines, 0, 1)
	}
	r.lines = append(r.lines, line)
}

func (r *ring) last() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.lines)
}
