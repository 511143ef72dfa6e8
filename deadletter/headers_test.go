package deadletter_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

func TestForgedHeadersOnASourceAreDroppedAndNoted(t *testing.T) {
	r, err := readSource([]byte(plainValue),
		header("route", "a"), header("recon-attempt", "4"), header("recon-id", identity),
		header("Recon-Attempt", "9"), header("recon-", ""), header("recon-of-somebody", "x"), header("route", "b"))
	if err != nil {
		t.Fatal(err)
	}
	if r.ID == identity || r.Attempt != 0 {
		t.Errorf("a forged header is believed: id %s, attempt %d", r.ID, r.Attempt)
	}
	want := []deadletter.Header{header("route", "a"), header("Recon-Attempt", "9"), header("route", "b")}
	if !sameHeaders(r.Foreign, want) {
		t.Errorf("foreign headers are %q", r.Foreign)
	}
	wantNotes(t, r, deadletter.NoteForged)
}

func TestForeignHeadersKeepOrderDuplicatesNullsAndBytes(t *testing.T) {
	foreign := []deadletter.Header{
		header("route", "a"), {Key: "tenant", Value: nil}, header("note", ""), header("x", "1"),
		header("route", "b"), header("", "no name"), header("bin", "\x00\xFF\xFE"), header("x-death", "[[[not,a,list"),
	}
	r, err := readSource([]byte(plainValue), foreign...)
	if err != nil {
		t.Fatal(err)
	}
	for range 5 { // through copies of copies
		if !sameHeaders(r.Foreign, foreign) {
			t.Fatalf("foreign headers are %q", r.Foreign)
		}
		r.NotBefore = arrived + 1
		if r, err = readCopy(deadletter.Tier, r.Headers()...); err != nil {
			t.Fatal(err)
		}
	}
}

func TestReadBorrowsAndDoesNotWrite(t *testing.T) {
	headers := []deadletter.Header{header("a", "1"), header("recon-x", "2"), header("b", "3")}
	want := []deadletter.Header{header("a", "1"), header("recon-x", "2"), header("b", "3")}
	r, err := readSource([]byte(plainValue), headers...)
	if err != nil {
		t.Fatal(err)
	}
	_ = append(r.Foreign, header("c", "4"))
	if !sameHeaders(headers, want) {
		t.Errorf("the message's headers are now %q", headers)
	}
	clean := []deadletter.Header{header("a", "1"), header("recon-attempt", "2")}
	if r, err = readCopy(deadletter.Tier, clean...); err != nil {
		t.Fatal(err)
	}
	_ = append(r.Foreign, header("c", "4"))
	if clean[1].Key != "recon-attempt" {
		t.Errorf("an append to Foreign reaches the message: %q", clean)
	}
}

func TestACopySaysWhatTheRecordSays(t *testing.T) {
	r, err := readSource([]byte(plainValue), header("route", "a"))
	if err != nil {
		t.Fatal(err)
	}
	r.Attempt, r.Snoozes, r.Redrive = 3, 2, 1
	r.NotBefore, r.FirstFailed, r.Redriven = startMS+60_000, startMS+1000, startMS+2000
	r.ErrorClass, r.Error, r.Reason = "timeout", "no answer after 10s – Zürich", deadletter.ReasonPermanent
	r.ErrorStatus, r.ErrorCode, r.Rule = 503, "ledger:E42", "people-decide"
	r.Masked = true

	got, err := readCopy(deadletter.Tier, r.Headers()...)
	if err != nil {
		t.Fatal(err)
	}
	wantNotes(t, got)
	wantControl(t, got, r)
}

func wantControl(t *testing.T, got, want deadletter.Record) {
	t.Helper()
	for _, f := range []struct {
		name      string
		got, want any
	}{
		{"ID", got.ID, want.ID}, {"Origin", got.Origin, want.Origin}, {"Attempt", got.Attempt, want.Attempt},
		{"Snoozes", got.Snoozes, want.Snoozes}, {"Timestamp", got.Timestamp, want.Timestamp},
		{"NotBefore", got.NotBefore, want.NotBefore}, {"Enqueued", got.Enqueued, want.Enqueued},
		{"FirstFailed", got.FirstFailed, want.FirstFailed}, {"ErrorClass", got.ErrorClass, want.ErrorClass},
		{"ErrorStatus", got.ErrorStatus, want.ErrorStatus}, {"ErrorCode", got.ErrorCode, want.ErrorCode}, {"Rule", got.Rule, want.Rule},
		{"Error", got.Error, want.Error}, {"Reason", got.Reason, want.Reason}, {"Redrive", got.Redrive, want.Redrive},
		{"Redriven", got.Redriven, want.Redriven}, {"Masked", got.Masked, want.Masked},
	} {
		if f.got != f.want {
			t.Errorf("%s is %v, want %v", f.name, f.got, f.want)
		}
	}
	if !sameBytes(got.Key, want.Key) || !sameBytes(got.Value, want.Value) || !sameHeaders(got.Foreign, want.Foreign) {
		t.Errorf("key %q, value %q or headers %q changed", got.Key, got.Value, got.Foreign)
	}
}

func TestEmptyOptionalHeadersAreLeftOutAndAttemptNever(t *testing.T) {
	r := deadletter.Record{}
	got := r.Headers()
	if want := []deadletter.Header{header("recon-attempt", "0")}; !sameHeaders(got, want) {
		t.Errorf("headers are %q, want %q", got, want)
	}
}

func TestAppendHeadersKeepsWhatIsThere(t *testing.T) {
	r := deadletter.Record{Attempt: 1, Foreign: []deadletter.Header{header("a", "1")}}
	got, _ := r.AppendHeaders([]deadletter.Header{header("first", "0")}, nil)
	if want := []deadletter.Header{header("first", "0"), header("a", "1"), header("recon-attempt", "1")}; !sameHeaders(got, want) {
		t.Errorf("headers are %q, want %q", got, want)
	}
}

func TestTheLastWellFormedCounterCountsAndNeverFallsToZero(t *testing.T) {
	const missing = "malformed header recon-attempt: missing on a record of a tier"
	const garbage = "malformed header recon-attempt: not a decimal number"
	repaired := []string{deadletter.NoteHeaderRepaired}
	null := []byte(nil)
	for _, tc := range []struct {
		name    string
		values  [][]byte
		want    int
		err     string
		repairs []string
	}{
		{"one", [][]byte{[]byte("3")}, 3, "", nil},
		{"the greatest", [][]byte{[]byte("2147483647")}, math.MaxInt32, "", nil},
		{"duplicates", [][]byte{[]byte("0"), []byte("2")}, 2, "", repaired},
		{"equal duplicates", [][]byte{[]byte("2"), []byte("2")}, 2, "", repaired},
		{"garbage behind", [][]byte{[]byte("3"), []byte("abc")}, 3, "", repaired},
		{"garbage before", [][]byte{null, []byte("3")}, 3, "", repaired},
		{"beyond int32", [][]byte{[]byte("2147483648")}, math.MaxInt32, "", repaired},
		{"beyond int64", [][]byte{[]byte("9223372036854775808")}, math.MaxInt32, "", repaired},
		{"beyond uint64", [][]byte{[]byte("18446744073709551616")}, math.MaxInt32, "", repaired},
		{"a thousand digits", [][]byte{[]byte(strings.Repeat("9", 1000))}, math.MaxInt32, "", repaired},
		{"none", nil, 0, missing, nil},
		{"garbage", [][]byte{[]byte("abc")}, 0, garbage, repaired},
		{"JSON", [][]byte{[]byte(`{"att":1}`)}, 0, garbage, repaired},
		{"negative", [][]byte{[]byte("-3")}, 0, garbage, repaired},
		{"fraction", [][]byte{[]byte("1.5")}, 0, garbage, repaired},
		{"signed", [][]byte{[]byte("+3")}, 0, garbage, repaired},
		{"spaced", [][]byte{[]byte(" 3")}, 0, garbage, repaired},
		{"hexadecimal", [][]byte{[]byte("0x3")}, 0, garbage, repaired},
		{"other digits", [][]byte{[]byte("٣")}, 0, garbage, repaired},
		{"binary", [][]byte{{0, 0, 0, 3}}, 0, garbage, repaired},
		{"empty", [][]byte{{}}, 0, garbage, repaired},
		{"null", [][]byte{null}, 0, garbage, repaired},
	} {
		t.Run(tc.name, func(t *testing.T) {
			headers := []deadletter.Header{header("recon-id", identity), header("recon-origin", "recon.dlq/2/17"), header("recon-not-before", strconv.Itoa(startMS))}
			for _, v := range tc.values {
				headers = append(headers, deadletter.Header{Key: "recon-attempt", Value: v})
			}
			r, err := readCopy(deadletter.Tier, headers...)
			if tc.err != "" {
				wantMalformed(t, err, tc.err)
			} else if err != nil {
				t.Error(err)
			}
			if r.Attempt != tc.want || r.ID != identity {
				t.Errorf("attempt %d of %s, want %d of %s", r.Attempt, r.ID, tc.want, identity)
			}
			wantNotes(t, r, tc.repairs...)
			written := 0
			for _, h := range r.Headers() {
				if h.Key == "recon-attempt" {
					written++
				}
			}
			if written != 1 {
				t.Errorf("the copy has %d attempt headers", written)
			}
		})
	}
}

func TestOnTopicsOfOursTheValuesAttemptsAreOnlyTheLeast(t *testing.T) {
	m := deadletter.Message{Place: tier, Timestamp: arrived, Value: []byte(strings.TrimSuffix(plainValue, "}") + `,"attempts":2}`)}
	for _, tc := range []struct {
		kind    deadletter.Kind
		attempt string
		want    int
		ok      bool
	}{
		{deadletter.Tier, "3", 3, true}, {deadletter.Tier, "0", 0, true}, {deadletter.Tier, "", 2, false}, {deadletter.Tier, "x", 2, false},
		{deadletter.Hold, "3", 3, true}, {deadletter.Hold, "", 2, true}, {deadletter.Hold, "x", 2, false},
		{deadletter.Poison, "3", 3, true}, {deadletter.Poison, "", 2, true}, {deadletter.Poison, "x", 2, false},
	} {
		m.Headers = nil
		if tc.attempt != "" {
			m.Headers = []deadletter.Header{header("recon-attempt", tc.attempt)}
		}
		r, err := deadletter.Read(m, options(tc.kind))
		if r.Attempt != tc.want || (err == nil) != tc.ok {
			t.Errorf("kind %d, header %q: attempt %d, %v", tc.kind, tc.attempt, r.Attempt, err)
		}
	}
}

func TestAnUnreadableRedriveIsMalformedAndAMissingOneIsNone(t *testing.T) {
	r, err := readCopy(deadletter.Tier, header("recon-attempt", "1"), header("recon-redrive", "twice"))
	wantMalformed(t, err, "malformed header recon-redrive: not a decimal number")
	if r.Attempt != 1 {
		t.Errorf("attempt %d is lost", r.Attempt)
	}
	if r, err = readCopy(deadletter.Tier, header("recon-attempt", "1")); err != nil || r.Redrive != 0 {
		t.Errorf("redrive %d, %v", r.Redrive, err)
	}
	if r, err = readCopy(deadletter.Tier, header("recon-attempt", "1"), header("recon-redrive", "25")); err != nil || r.Redrive != 25 {
		t.Errorf("redrive %d, %v", r.Redrive, err)
	}
}

func TestAnUnreadableSnoozeBudgetIsSpent(t *testing.T) {
	r, err := readCopy(deadletter.Tier, header("recon-attempt", "1"), header("recon-snoozes", "-1"))
	if err != nil || r.Snoozes != math.MaxInt32 {
		t.Errorf("snoozes %d, %v", r.Snoozes, err)
	}
}

func TestNotBeforeOfATierIsRepairedFromItsDelay(t *testing.T) {
	due := arrived + 10_000
	week := readAt.UnixMilli() + 7*dayMS
	bad, far, repaired := deadletter.NoteNotBeforeBad, deadletter.NoteNotBeforeFar, deadletter.NoteHeaderRepaired
	for _, tc := range []struct {
		name   string
		kind   deadletter.Kind
		values []string
		want   int64
		notes  []string
	}{
		{"read as it is", deadletter.Tier, []string{"1764547209999"}, 1764547209999, nil},
		{"long past", deadletter.Tier, []string{"1"}, 1, nil},
		{"the furthest", deadletter.Tier, []string{strconv.FormatInt(week, 10)}, week, nil},
		{"further", deadletter.Tier, []string{strconv.FormatInt(week+1, 10)}, due, []string{far}},
		{"beyond int64", deadletter.Tier, []string{"99999999999999999999"}, due, []string{far}},
		{"missing", deadletter.Tier, nil, due, []string{bad}},
		{"null", deadletter.Tier, []string{"null"}, due, []string{bad}},
		{"empty", deadletter.Tier, []string{""}, due, []string{bad}},
		{"zero", deadletter.Tier, []string{"0"}, due, []string{bad}},
		{"negative", deadletter.Tier, []string{"-1764547209999"}, due, []string{bad}},
		{"garbage", deadletter.Tier, []string{"soon"}, due, []string{bad}},
		{"the last well-formed", deadletter.Tier, []string{"1764547200001", "1764547200002", "x"}, 1764547200002, []string{repaired}},
		{"missing in hold", deadletter.Hold, nil, 0, nil},
		{"garbage in hold", deadletter.Hold, []string{"soon"}, due, []string{bad}},
		{"further in hold", deadletter.Hold, []string{strconv.FormatInt(week+1, 10)}, due, []string{far}},
		{"missing in poison", deadletter.Poison, nil, 0, nil},
		{"garbage in poison", deadletter.Poison, []string{"soon"}, 0, []string{bad}},
		{"further in poison", deadletter.Poison, []string{strconv.FormatInt(week+1, 10)}, week + 1, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			headers := []deadletter.Header{header("recon-id", identity), header("recon-origin", "recon.dlq/2/17"), header("recon-attempt", "1")}
			for _, v := range tc.values {
				h := header("recon-not-before", v)
				if v == "null" {
					h.Value = nil
				}
				headers = append(headers, h)
			}
			r, err := readCopy(tc.kind, headers...)
			if err != nil {
				t.Fatal(err)
			}
			if r.NotBefore != tc.want {
				t.Errorf("not before %d, want %d", r.NotBefore, tc.want)
			}
			wantNotes(t, r, tc.notes...)
		})
	}
}

func TestAMissingIdentityIsMadeFromThisPosition(t *testing.T) {
	here := deadletter.Identity("cluster-1", tier)
	for _, id := range []string{"", "short", strings.ToUpper(identity), identity + "0", strings.Repeat("g", 32)} {
		headers := []deadletter.Header{header("recon-attempt", "1"), header("recon-not-before", "1764547209999")}
		if id != "" {
			headers = append(headers, header("recon-id", id))
		}
		r, err := readCopy(deadletter.Tier, headers...)
		if err != nil {
			t.Fatal(err)
		}
		if r.ID != here || r.Origin != "recon.dlq.retry.10s/1/4" || r.Timestamp != arrived {
			t.Errorf("with id %q: %s, %s, %d", id, r.ID, r.Origin, r.Timestamp)
		}
		wantNotes(t, r, deadletter.NoteIdentityMissing)
	}
	r, err := readCopy(deadletter.Tier, header("recon-attempt", "1"), header("recon-not-before", "1764547209999"),
		header("recon-origin", "recon.dlq/2/17"), header("recon-timestamp", "1764547200001"))
	if err != nil || r.ID != here || r.Origin != "recon.dlq/2/17" || r.Timestamp != 1764547200001 {
		t.Errorf("what is still known is lost: %s, %s, %d, %v", r.ID, r.Origin, r.Timestamp, err)
	}
}

func TestAnUnreadableOriginBecomesThisPosition(t *testing.T) {
	for _, origin := range []string{
		"", "recon.dlq", "recon.dlq/2", "recon.dlq/2/17/3", "recon.dlq/-2/17", "/2/17", "recon dlq/2/17", "recon.dlq/2147483648/17",
		strings.Repeat("t", 400) + "/2/17",
	} {
		r, err := readCopy(deadletter.Hold, header("recon-id", identity), header("recon-attempt", "1"), header("recon-origin", origin))
		if err != nil || r.ID != identity || r.Origin != "recon.dlq.retry.10s/1/4" {
			t.Errorf("origin %q is read as %q of %s, %v", origin, r.Origin, r.ID, err)
		}
		wantNotes(t, r, deadletter.NoteHeaderRepaired)
	}
}

func TestATimeAheadOfEveryClockIsClampedToTheArrival(t *testing.T) {
	day := readAt.UnixMilli() + dayMS
	for _, name := range []string{"recon-enqueued", "recon-first-failed", "recon-redriven"} {
		for in, want := range map[string]int64{
			"1764547200001":               1764547200001,
			strconv.FormatInt(day, 10):    day,
			strconv.FormatInt(day+1, 10):  arrived,
			"999999999999999999999999999": arrived,
		} {
			r, err := readCopy(deadletter.Hold, header("recon-id", identity), header("recon-attempt", "1"),
				header("recon-origin", "recon.dlq/2/17"), header(name, in))
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]int64{
				"recon-enqueued": r.Enqueued, "recon-first-failed": r.FirstFailed, "recon-redriven": r.Redriven,
			}[name]
			if got != want {
				t.Errorf("%s %s is read as %d, want %d", name, in, got, want)
			}
			if want == arrived {
				wantNotes(t, r, deadletter.NoteHeaderRepaired)
			} else {
				wantNotes(t, r)
			}
		}
	}
}

func TestEnqueuedOfACopyFallsBackToTheValueThenToTheFirstArrival(t *testing.T) {
	read := func(value string, headers ...deadletter.Header) deadletter.Record {
		t.Helper()
		headers = append(headers, header("recon-id", identity), header("recon-origin", "recon.dlq/2/17"), header("recon-attempt", "1"))
		m := deadletter.Message{Place: tier, Timestamp: arrived, Value: []byte(value), Headers: headers}
		r, err := deadletter.Read(m, options(deadletter.Hold))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	unknown := strings.Replace(plainValue, "1764547200000", "0", 1)
	ahead := strings.Replace(plainValue, "1764547200000", strconv.FormatInt(arrived+1, 10), 1)
	if r := read(unknown, header("recon-enqueued", "1764547200003")); r.Enqueued != 1764547200003 {
		t.Errorf("the header says 1764547200003, read %d", r.Enqueued)
	}
	if r := read(ahead, header("recon-enqueued", "1764547200003")); r.Enqueued != 1764547200003 || len(r.Notes) != 0 {
		t.Errorf("the header says 1764547200003, read %d, notes %q", r.Enqueued, r.Notes)
	}
	if r := read(plainValue, header("recon-enqueued", "x")); r.Enqueued != startMS {
		t.Errorf("the value says %d, read %d", startMS, r.Enqueued)
	}
	if r := read(ahead); r.Enqueued != arrived {
		t.Errorf("a value ahead is read as %d, want %d", r.Enqueued, arrived)
	}
	if r := read(unknown, header("recon-timestamp", "1764547200004")); r.Enqueued != 1764547200004 {
		t.Errorf("the first arrival was 1764547200004, read %d", r.Enqueued)
	}
	for _, first := range []string{"1764547200", strconv.FormatInt(arrived+1, 10), "99999999999999999999"} {
		if r := read(unknown, header("recon-timestamp", first)); r.Enqueued != arrived {
			t.Errorf("a first arrival at %s is no arrival: read %d, want %d", first, r.Enqueued, arrived)
		}
	}
	if r := read(unknown); r.Enqueued != arrived {
		t.Errorf("nothing known: read %d, want the arrival %d", r.Enqueued, arrived)
	}
}

func TestUnknownOwnedHeadersAreNotCarriedOn(t *testing.T) {
	r, err := readCopy(deadletter.Hold, header("recon-id", identity), header("recon-origin", "recon.dlq/2/17"), header("recon-attempt", "1"),
		header("recon-future", strings.Repeat("x", 1<<20)), header("route", "a"))
	if err != nil || len(r.Foreign) != 1 {
		t.Errorf("foreign headers %q, %v", r.Foreign, err)
	}
	wantNotes(t, r, deadletter.NoteHeaderRepaired)
}

func TestAMaskedCopyStaysMarked(t *testing.T) {
	for _, mark := range []deadletter.Header{header("recon-masked", "true"), header("recon-masked", ""), {Key: "recon-masked"}, header("recon-masked", "\xFF")} {
		r, err := readCopy(deadletter.Poison, header("recon-attempt", "1"), mark)
		if err != nil || !r.Masked {
			t.Errorf("%q: masked %v, %v", mark.Value, r.Masked, err)
		}
		if r, err = readCopy(deadletter.Poison, r.Headers()...); err != nil || !r.Masked {
			t.Errorf("%q: masked %v on the next copy, %v", mark.Value, r.Masked, err)
		}
	}
}

func TestAMalformedRecordIsCopiedWithItsBytes(t *testing.T) {
	for _, value := range [][]byte{nil, {}, []byte(`{"discrepancy_id":"r-1102", broken`), {0xFF, 0xFE, '{', '}'}} {
		r, err := readSource(value, header("route", "a"))
		if err == nil {
			t.Fatalf("%q is accepted", value)
		}
		r.Reason, r.Error = deadletter.ReasonMalformed, err.Error()
		m := deadletter.Message{Place: tier, Timestamp: arrived, Key: r.Key, Value: r.Value, Headers: r.Headers()}
		poison, again := deadletter.Read(m, options(deadletter.Poison))
		if again == nil || again.Error() != err.Error() {
			t.Errorf("the poison copy of %q says %v, want %v", value, again, err)
		}
		wantControl(t, poison, r)
	}
}

func TestCutErrorIsValidBoundedAndOnARuneBoundary(t *testing.T) {
	const limit = deadletter.MaxErrorBytes
	for _, tc := range []struct{ name, in, want string }{
		{"short", "timeout", "timeout"},
		{"empty", "", ""},
		{"just fits", strings.Repeat("x", limit), strings.Repeat("x", limit)},
		{"one too long", strings.Repeat("x", limit+1), strings.Repeat("x", limit)},
		{"rune on the edge", strings.Repeat("x", limit-1) + "é", strings.Repeat("x", limit-1)},
		{"emoji on the edge", strings.Repeat("x", limit-3) + "😀😀", strings.Repeat("x", limit-3)},
		{"rune that fits", strings.Repeat("x", limit-2) + "éé", strings.Repeat("x", limit-2) + "é"},
		{"invalid", "a\xFFb", "a\uFFFDb"},
		{"invalid that grows over the edge", strings.Repeat("a\xFF", limit/2), strings.Repeat("a\uFFFD", limit/4)},
		{"only continuation bytes", strings.Repeat("\x80", 10*limit), "\uFFFD"},
		{"text behind bad bytes", strings.Repeat("\x80", limit) + "end", "\uFFFDend"},
		{"megabytes", strings.Repeat("é", 1<<20), strings.Repeat("é", limit/2)},
	} {
		got := deadletter.CutError(tc.in)
		if got != tc.want {
			t.Errorf("%s: %d bytes %.40q, want %d bytes", tc.name, len(got), got, len(tc.want))
		}
		if len(got) > limit || !utf8.ValidString(got) {
			t.Errorf("%s: %d bytes, valid %v", tc.name, len(got), utf8.ValidString(got))
		}
	}
}

func TestALongHeaderOfAnotherVersionIsCutOnARuneBoundary(t *testing.T) {
	const limit = deadletter.MaxErrorBytes
	r, err := readCopy(deadletter.Poison, header("recon-id", identity), header("recon-origin", "recon.dlq/2/17"), header("recon-attempt", "1"),
		header("recon-error", strings.Repeat("x", limit-3)+"😀"))
	if err != nil || r.Error != strings.Repeat("x", limit-3) {
		t.Errorf("%d bytes of error, ending in %q, %v", len(r.Error), r.Error[max(0, len(r.Error)-5):], err)
	}
	wantNotes(t, r, deadletter.NoteHeaderRepaired)
}

func TestOwnedValuesDoNotRunIntoEachOther(t *testing.T) {
	r := deadletter.Record{ID: identity, Attempt: 1, Redrive: 2}
	headers := r.Headers()
	_ = append(headers[0].Value, "overrun"...)
	if !sameHeaders(headers, r.Headers()) {
		t.Errorf("an append to one value changed another: %q", headers)
	}
}

func TestACopyIsLittleMoreThanItsOriginal(t *testing.T) {
	huge := strings.Repeat("\xFF", 1<<20)
	r := deadletter.Record{
		ID: huge, Origin: huge, Attempt: math.MaxInt, Snoozes: math.MaxInt, Timestamp: math.MaxInt64, NotBefore: math.MaxInt64,
		Enqueued: math.MaxInt64, FirstFailed: math.MaxInt64, ErrorClass: huge, Error: huge, Reason: huge,
		ErrorStatus: math.MaxInt, ErrorCode: huge, Rule: huge,
		Redrive: math.MaxInt, Redriven: math.MaxInt64, Masked: true, Foreign: []deadletter.Header{header("a", "1")},
	}
	if got := wireBytes(r.Headers()[1:]); got > 4096 {
		t.Errorf("owned headers take %d bytes", got)
	}
	r.Attempt, r.Redrive = -1, -1
	got, err := readCopy(deadletter.Poison, r.Headers()...)
	if err != nil || got.Attempt != 0 || got.Redrive != 0 {
		t.Errorf("negative counters are read as %d and %d, %v", got.Attempt, got.Redrive, err)
	}
}

// wireBytes is what headers take at most in a record batch: two varints, key and value each.
func wireBytes(headers []deadletter.Header) int {
	n := 0
	for _, h := range headers {
		n += 10 + len(h.Key) + len(h.Value)
	}
	return n
}

func TestSizeIsNeverLessThanACopyOnTheWire(t *testing.T) {
	foreign := make([]deadletter.Header, 100)
	for i := range foreign {
		foreign[i] = header("k", strings.Repeat("v", i))
	}
	for _, r := range []deadletter.Record{
		{},
		{ID: identity, Origin: "recon.dlq/2/17", Value: []byte(plainValue), Key: []byte("k"), Foreign: foreign, Attempt: math.MaxInt32,
			Snoozes: math.MaxInt32, Timestamp: math.MaxInt64, NotBefore: math.MaxInt64, Enqueued: math.MaxInt64, FirstFailed: math.MaxInt64,
			ErrorClass: strings.Repeat("c", 128), Error: strings.Repeat("e", 1024), Reason: strings.Repeat("r", 128),
			ErrorStatus: 999, ErrorCode: strings.Repeat("x", 64), Rule: strings.Repeat("u", 128),
			Redrive: math.MaxInt32, Redriven: math.MaxInt64, Masked: true},
	} {
		const framing = 61 + 40 // of a batch of one record, and of the record
		if wire := framing + len(r.Key) + len(r.Value) + wireBytes(r.Headers()); r.Size() < wire {
			t.Errorf("size %d, on the wire %d", r.Size(), wire)
		}
	}
}

// A header that is named and forgotten elsewhere would be dropped from every copy.
func TestEveryOwnedHeaderIsWritten(t *testing.T) {
	r := deadletter.Record{
		ID: identity, Origin: "recon.dlq/2/17", Attempt: 1, Snoozes: 1, Timestamp: startMS, NotBefore: startMS, Enqueued: startMS,
		FirstFailed: startMS, ErrorClass: "timeout", ErrorStatus: 503, ErrorCode: "E42", Error: "e", Reason: "manual", Rule: "people", Redrive: 1, Redriven: startMS, Masked: true,
	}
	written := map[string]bool{}
	for _, h := range r.Headers() {
		written[h.Key] = true
	}
	file, err := parser.ParseFile(token.NewFileSet(), "deadletter.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || !strings.HasPrefix(spec.Names[0].Name, "Header") || spec.Names[0].Name == "HeaderPrefix" {
			return true
		}
		name, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		named++
		if !written[name] {
			t.Errorf("%s (%s) is not written", spec.Names[0].Name, name)
		}
		return true
	})
	if named == 0 || named != len(written) {
		t.Errorf("%d headers are named, %d are written", named, len(written))
	}
}

func TestAStatusOrCodeThatNoTargetGaveIsDropped(t *testing.T) {
	for _, tc := range []struct {
		name, status, code string
		wantStatus         int
		wantCode           string
	}{
		{"as written", "503", "ledger:E42", 503, "ledger:E42"},
		{"a status beyond three digits", "5030", "", 0, ""},
		{"a negative status", "-1", "", 0, ""},
		{"a status in words", "gone", "", 0, ""},
		{"a code with a space", "", "E 42", 0, ""},
		{"a code with a line end", "", "E42\n", 0, ""},
		{"a code beyond ASCII", "", "Überlauf", 0, ""},
		{"a code too long", "", strings.Repeat("x", deadletter.MaxCodeBytes+1), 0, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := readCopy(deadletter.Tier, header("recon-attempt", "1"), header("recon-not-before", "1764547209999"),
				header("recon-error-status", tc.status), header("recon-error-code", tc.code))
			if err != nil || r.ErrorStatus != tc.wantStatus || r.ErrorCode != tc.wantCode {
				t.Errorf("status %d, code %q, %v; want %d, %q", r.ErrorStatus, r.ErrorCode, err, tc.wantStatus, tc.wantCode)
			}
		})
	}
	r := deadletter.Record{Attempt: 1, ErrorCode: "E 42"}
	if got := r.Headers(); len(got) != 1 {
		t.Errorf("a code that is none is written: %q", got)
	}
}

func TestReadingACopyTwiceGivesTheSame(t *testing.T) {
	r, err := readCopy(deadletter.Tier, header("recon-attempt", "1"), header("recon-not-before", "soon"))
	if err != nil {
		t.Fatal(err)
	}
	o := options(deadletter.Tier)
	o.Now = o.Now.Add(time.Hour)
	again, err := deadletter.Read(deadletter.Message{Place: tier, Timestamp: arrived, Key: []byte("acct-17"), Value: []byte(plainValue),
		Headers: []deadletter.Header{header("recon-attempt", "1"), header("recon-not-before", "soon")}}, o)
	if err != nil {
		t.Fatal(err)
	}
	wantControl(t, again, r)
}
