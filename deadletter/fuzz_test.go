package deadletter_test

import (
	"bytes"
	"encoding/json"
	"math"
	"math/big"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

// FuzzValue holds Read against encoding/json: never a panic, bytes untouched,
// and the same values accepted with the same fields, in both directions.
func FuzzValue(f *testing.F) {
	f.Add([]byte(plainValue))
	f.Fuzz(func(t *testing.T, value []byte) {
		before := bytes.Clone(value)
		r, err := readSource(value)
		if !sameBytes(r.Value, before) || !sameBytes(value, before) {
			t.Fatalf("the value changed to %q", r.Value)
		}
		if r.ID == "" || r.Origin != place.String() || r.Enqueued == 0 || r.Attempt < 0 || r.MaxAttempts < 0 {
			t.Errorf("what is always known is missing: %+v", r)
		}
		if err != nil && !utf8.ValidString(err.Error()) {
			t.Errorf("the error carries payload: %q", err)
		}
		want, ok := modelValue(value)
		if strings.ContainsRune(want.ID+want.Category, utf8.RuneError) {
			return // half a surrogate pair, which encoding/json replaces, or a true U+FFFD
		}
		if ok != (err == nil) {
			t.Fatalf("encoding/json accepts: %v, Read: %v", ok, err)
		}
		if !ok {
			return
		}
		got := model{r.DiscrepancyID, r.Category, r.Enqueued, r.Attempt, r.MaxAttempts}
		if want.Enqueued == 0 || want.Enqueued > arrived {
			want.Enqueued = arrived
		}
		if got != want {
			t.Errorf("read %+v, encoding/json reads %+v", got, want)
		}
	})
}

type model struct {
	ID, Category          string
	Enqueued              int64
	Attempts, MaxAttempts int
}

// modelValue is the value's contract again, slow and on encoding/json.
func modelValue(value []byte) (m model, ok bool) {
	if !utf8.Valid(value) || !json.Valid(value) || jsonDepth(value) > deadletter.MaxDepth {
		return m, false
	}
	dec := json.NewDecoder(bytes.NewReader(value))
	if open, _ := dec.Token(); open != json.Delim('{') {
		return m, false
	}
	ok = true
	fields := map[string]json.RawMessage{}
	for dec.More() {
		key, _ := dec.Token()
		name, _ := key.(string)
		var raw json.RawMessage
		if dec.Decode(&raw) != nil {
			return m, false
		}
		switch name {
		case "discrepancy_id", "category", "context", "verdict", "enqueued_ms", "attempts", "max_attempts":
			if _, twice := fields[name]; twice {
				ok = false
				continue
			}
		}
		fields[name] = raw
	}
	text := func(name string) (s string) {
		if fields[name] == nil || fields[name][0] != '"' || json.Unmarshal(fields[name], &s) != nil || s == "" || len(s) > deadletter.MaxFieldBytes {
			ok = false
		}
		return s
	}
	integer := func(name string, least, most int64) (n int64) {
		if fields[name][0] == 'n' || json.Unmarshal(fields[name], &n) != nil || n < least || n > most {
			ok = false
		}
		return n
	}
	m.ID, m.Category = text("discrepancy_id"), text("category")
	if fields["context"] == nil || fields["context"][0] != '{' {
		ok = false
	}
	if v := fields["verdict"]; v != nil && v[0] != '{' && v[0] != 'n' {
		ok = false
	}
	if fields["enqueued_ms"] == nil {
		ok = false
	} else if m.Enqueued = integer("enqueued_ms", 0, readAt.UnixMilli()+dayMS); m.Enqueued != 0 && m.Enqueued < 946684800000 {
		ok = false
	}
	if fields["attempts"] != nil {
		m.Attempts = int(integer("attempts", 0, math.MaxInt32))
	}
	if fields["max_attempts"] != nil {
		m.MaxAttempts = int(integer("max_attempts", 1, math.MaxInt32))
	}
	return m, ok
}

func jsonDepth(value []byte) (deepest int) {
	dec := json.NewDecoder(bytes.NewReader(value))
	for depth := 0; ; {
		token, err := dec.Token()
		if err != nil {
			return deepest
		}
		switch token {
		case json.Delim('{'), json.Delim('['):
			depth++
			deepest = max(deepest, depth)
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
	}
}

// FuzzHeaders reads a message of a topic of ours (kind 1 to 3), copies it, and
// reads the copy: everything the worker knows must survive, counters by the
// rule and never downwards, foreign headers byte for byte, owned ones once and
// within bounds. A line of headers is "name: value"; without ": " the value is null.
func FuzzHeaders(f *testing.F) {
	f.Add(uint8(1), "recon-attempt: 1\nroute: a", arrived)
	f.Fuzz(func(t *testing.T, kind uint8, lines string, timestamp int64) {
		m := deadletter.Message{Place: tier, Timestamp: timestamp, Key: []byte("k"), Value: []byte(plainValue), Headers: parseHeaders(lines)}
		o := options(deadletter.Kind(kind % 4))
		first, err := deadletter.Read(m, o)

		var foreign []deadletter.Header
		for _, h := range m.Headers {
			if !strings.HasPrefix(h.Key, deadletter.HeaderPrefix) {
				foreign = append(foreign, h)
			}
		}
		if !sameHeaders(first.Foreign, foreign) {
			t.Fatalf("foreign headers are %q, want %q", first.Foreign, foreign)
		}
		if o.Kind != deadletter.Source {
			checkCounter(t, m.Headers, deadletter.HeaderAttempt, first.Attempt, err)
			checkCounter(t, m.Headers, deadletter.HeaderRedrive, first.Redrive, err)
		} else if err != nil {
			t.Errorf("headers of a source made it malformed: %v", err)
		}
		if o.Kind == deadletter.Tier && (first.NotBefore <= 0 || first.NotBefore > readAt.Add(o.MaxWait).UnixMilli()) {
			t.Errorf("not before %d", first.NotBefore)
		}
		if limit := readAt.UnixMilli() + dayMS; max(first.Enqueued, first.FirstFailed, first.Redriven) > limit {
			t.Errorf("a time is further ahead than %d: %+v", limit, first)
		}
		if len(first.Notes) > 5 {
			t.Errorf("notes pile up: %q", first.Notes)
		}

		headers := first.Headers()
		seen := map[string]bool{}
		for _, h := range headers[len(foreign):] {
			if seen[h.Key] {
				t.Errorf("%s is written twice", h.Key)
			}
			seen[h.Key] = true
			if !utf8.Valid(h.Value) || h.Value == nil {
				t.Errorf("%s is written as %q", h.Key, h.Value)
			}
		}
		if n := wireBytes(headers[len(foreign):]); n > 4096 {
			t.Errorf("owned headers take %d bytes", n)
		}
		if wire := 101 + len(first.Key) + len(first.Value) + wireBytes(headers); first.Size() < wire {
			t.Errorf("size %d, on the wire %d", first.Size(), wire)
		}

		// The copy goes to a topic of ours. A source record has no not-before yet.
		if o.Kind == deadletter.Source {
			o.Kind = deadletter.Hold
		}
		copied := m
		copied.Timestamp, copied.Headers = arrived, headers
		second, err := deadletter.Read(copied, o)
		if err != nil {
			t.Fatalf("the copy cannot be read: %v", err)
		}
		wantControl(t, second, first)
		if len(second.Notes) != 0 {
			t.Errorf("the copy needs repair: %q", second.Notes)
		}
	})
}

// checkCounter is the rule for counters again, with big numbers.
func checkCounter(t *testing.T, headers []deadletter.Header, name string, got int, err error) {
	t.Helper()
	present := false
	var last *big.Int
	for _, h := range headers {
		if h.Key != name {
			continue
		}
		present = true
		if len(h.Value) > 0 && strings.Trim(string(h.Value), "0123456789") == "" {
			last, _ = new(big.Int).SetString(string(h.Value), 10)
		}
	}
	switch {
	case present && last == nil:
		if err == nil {
			t.Errorf("%s cannot be read and is believed as %d", name, got)
		}
	case last != nil:
		want := int64(math.MaxInt32)
		if last.IsInt64() {
			want = min(want, last.Int64())
		}
		if int64(got) != want {
			t.Errorf("%s is read as %d, want %d", name, got, want)
		}
	}
}

func parseHeaders(lines string) []deadletter.Header {
	if lines == "" {
		return nil
	}
	var headers []deadletter.Header
	for line := range strings.SplitSeq(lines, "\n") {
		name, value, ok := strings.Cut(line, ": ")
		h := deadletter.Header{Key: name}
		if ok {
			h.Value = []byte(value)
		}
		headers = append(headers, h)
	}
	return headers
}

// BenchmarkRead reads a copy of 1 KB with 8 headers, as every retry does.
func BenchmarkRead(b *testing.B) {
	value := strings.TrimSuffix(plainValue, "}") + `,"note":"` + strings.Repeat("x", 1024-len(plainValue)-10) + `"}`
	m := deadletter.Message{
		Place: tier, Timestamp: arrived, Key: []byte("acct-17"), Value: []byte(value),
		Headers: []deadletter.Header{
			header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), header("content-type", "application/json"),
			header("recon-id", identity), header("recon-origin", "recon.dlq/2/17"), header("recon-attempt", "2"),
			header("recon-timestamp", "1764547200000"), header("recon-not-before", "1764547209999"), header("recon-enqueued", "1764547200000"),
		},
	}
	for name, kind := range map[string]deadletter.Kind{"source": deadletter.Source, "tier": deadletter.Tier} {
		b.Run(name, func(b *testing.B) {
			m := m
			if kind == deadletter.Source {
				m.Headers = m.Headers[:2]
			}
			o := options(kind)
			b.SetBytes(int64(len(value)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := deadletter.Read(m, o); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkHeaders(b *testing.B) {
	r, err := readCopy(deadletter.Tier, header("recon-id", identity), header("recon-origin", "recon.dlq/2/17"), header("recon-attempt", "2"), header("recon-not-before", "1764547209999"))
	if err != nil {
		b.Fatal(err)
	}
	r.ErrorClass, r.Error = "http_503", "the ledger is being migrated"
	dst, buf := make([]deadletter.Header, 0, 32), make([]byte, 0, 1024)
	b.ReportAllocs()
	for b.Loop() {
		dst, buf = r.AppendHeaders(dst[:0], buf[:0])
	}
}
