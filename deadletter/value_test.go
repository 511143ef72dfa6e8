package deadletter_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

func TestEveryFieldOfTheContractIsRead(t *testing.T) {
	r, err := readSource([]byte(` {
		"unknown": [1, -0.5e+3, true, false, null, {"discrepancy_id": "inner"}],
		"discrepancy_id": "r-1", "category": "value_diverged", "context": {"amount": "12.50"},
		"verdict": {"cause": "late"}, "enqueued_ms": 1764547200000, "attempts": 2, "max_attempts": 7
	} `))
	if err != nil {
		t.Fatal(err)
	}
	if r.DiscrepancyID != "r-1" || r.Category != "value_diverged" || r.Enqueued != startMS || r.Attempt != 2 || r.MaxAttempts != 7 {
		t.Errorf("read %+v", r)
	}
	wantNotes(t, r)
}

func TestOptionalFieldsHaveDefaults(t *testing.T) {
	for _, verdict := range []string{``, `,"verdict":null`} {
		r, err := readSource([]byte(strings.TrimSuffix(plainValue, "}") + verdict + "}"))
		if err != nil {
			t.Fatal(err)
		}
		if r.Attempt != 0 || r.MaxAttempts != 0 {
			t.Errorf("attempts %d, max_attempts %d, want 0 and 0", r.Attempt, r.MaxAttempts)
		}
	}
}

func TestStringsAreDecoded(t *testing.T) {
	for in, want := range map[string]string{
		`plain`:                         "plain",
		`\" \\ \/ \b \f \n \r \t`:       "\" \\ / \b \f \n \r \t",
		`\u00e9\u4E2d\u4e2D`:            "é中中",
		`\ud83d\ude00 and \uD83D\uDE00`: "😀 and 😀",
		`\u0000`:                        "\x00",
		`\uffff\ufffd`:                  "\uffff\ufffd",
		`\ud800\udc00\udbff\udfff`:      "\U00010000\U0010FFFF",
		`Zürich 😀`:                      "Zürich 😀",
		strings.Repeat("é", 256):        strings.Repeat("é", 256), // 512 bytes
		strings.Repeat(`\u0041`, 512):   strings.Repeat("A", 512),
	} {
		r, err := readSource([]byte(`{"discrepancy_id":"` + in + `","category":"` + in + `","context":{},"enqueued_ms":0}`))
		if err != nil {
			t.Errorf("%s: %v", in, err)
		} else if r.DiscrepancyID != want || r.Category != want {
			t.Errorf("%s is read as %q and %q, want %q", in, r.DiscrepancyID, r.Category, want)
		}
	}
}

func TestANameWithEscapesIsTheSameField(t *testing.T) {
	r, err := readSource([]byte(`{"\u0064iscrepancy_id":"r-1","cate\u0067ory":"c","context":{},"enqueued_ms":0}`))
	if err != nil || r.DiscrepancyID != "r-1" || r.Category != "c" {
		t.Errorf("read %q, %q, %v", r.DiscrepancyID, r.Category, err)
	}
	_, err = readSource([]byte(`{"discrepancy_id":"r-1","category":"c","context":{},"enqueued_ms":0,"attempts":1,"attempt\u0073":2}`))
	wantMalformed(t, err, "malformed value: field attempts at byte 97: duplicate field")
}

func TestNamesAreCaseSensitive(t *testing.T) {
	r, err := readSource([]byte(`{"Discrepancy_ID":1,"discrepancy_id":"r-1","category":"c","context":{},"enqueued_ms":0,"ATTEMPTS":-1,"\ud800":1,"` +
		strings.Repeat(`\u0041`, 100) + `":2}`))
	if err != nil || r.DiscrepancyID != "r-1" || r.Attempt != 0 {
		t.Errorf("read %q, attempts %d, %v", r.DiscrepancyID, r.Attempt, err)
	}
}

// Each bad input that a record can be is named here. The value goes on untouched,
// and the error says where without a word of the payload.
func TestBadInputIsMalformedAndSaysWhere(t *testing.T) {
	with := func(field, value string) string { // plainValue with one field replaced or added
		fields := []string{"discrepancy_id", "category", "context", "enqueued_ms"}
		values := map[string]string{"discrepancy_id": `"r-1"`, "category": `"c"`, "context": `{}`, "enqueued_ms": `0`}
		if _, ok := values[field]; !ok {
			fields = append(fields, field)
		}
		values[field] = value
		var members []string
		for _, f := range fields {
			if values[f] != "" {
				members = append(members, strconv.Quote(f)+":"+values[f])
			}
		}
		return "{" + strings.Join(members, ",") + "}"
	}
	const (
		atID, atCategory, atContext, atEnqueued, atOptional = 18, 35, 49, 66, 79
		notInteger                                          = "not an integer (without quotes, fraction or exponent)"
	)
	at := func(field string, offset int, problem string) string {
		return fmt.Sprintf("malformed value: field %s at byte %d: %s", field, offset, problem)
	}
	for _, tc := range []struct{ name, value, want string }{
		{"not JSON", `hello`, "malformed value at byte 0: not a JSON object"},
		{"broken JSON", `{"discrepancy_id":"r-1102", broken`, "malformed value at byte 28: a quoted name is needed"},
		{"cut JSON", `{"discrepancy_id":"r-1`, "malformed value at byte 22: unexpected end"},
		{"an array", `[1,2`, "malformed value at byte 0: not a JSON object"},
		{"a string", `"secret"`, "malformed value at byte 0: not a JSON object"},
		{"null as JSON", `null`, "malformed value at byte 0: not a JSON object"},
		{"only white space", " \n\t\r", "malformed value at byte 4: unexpected end"},
		{"0 bytes", ``, "malformed value at byte 0: empty value, an object is needed"},
		{"trailing data", with("context", `{}`) + `{}`, "malformed value at byte 68: data after the object"},
		{"trailing NUL", with("context", `{}`) + "\x00", "malformed value at byte 68: data after the object"},
		{"trailing comma", `{"a":1,}`, "malformed value at byte 7: a quoted name is needed"},
		{"missing comma", `{"a":1 "b":2}`, `malformed value at byte 7: "," or "}" is needed`},
		{"missing colon", `{"a" 1}`, `malformed value at byte 5: ":" is needed`},
		{"comma in an array", `{"a":[1,]}`, "malformed value at byte 8: not a JSON value (NaN and Infinity are none)"},
		{"array not closed", `{"a":[1}`, `malformed value at byte 7: "," or "]" is needed`},
		{"single quotes", `{'a':1}`, "malformed value at byte 1: a quoted name is needed"},
		{"comment", `{/**/"a":1}`, "malformed value at byte 1: a quoted name is needed"},
		{"byte order mark", "\xEF\xBB\xBF" + plainValue, "malformed value at byte 0: byte order mark, plain UTF-8 is needed"},
		{"UTF-16", "\xFF\xFE{\x00}\x00", "malformed value at byte 0: invalid UTF-8"},
		{"Latin-1 in a string", `{"a":"Z` + "\xFC" + `rich"}`, "malformed value at byte 7: invalid UTF-8"},
		{"surrogate as UTF-8", "{\"a\":\"\xED\xA0\x80\"}", "malformed value at byte 6: invalid UTF-8"},
		{"invalid UTF-8 behind the object", "{}\xFF", "malformed value at byte 2: invalid UTF-8"},
		{"syntax before invalid UTF-8", "{]\xFF", "malformed value at byte 1: a quoted name is needed"},
		{"NaN", `{"a":NaN}`, "malformed value at byte 5: not a JSON value (NaN and Infinity are none)"},
		{"Infinity", `{"a":-Infinity}`, "malformed value at byte 6: a digit is needed"},
		{"leading zero", `{"a":01}`, `malformed value at byte 6: "," or "}" is needed`},
		{"plus sign", `{"a":+1}`, "malformed value at byte 5: not a JSON value (NaN and Infinity are none)"},
		{"no fraction", `{"a":1.}`, "malformed value at byte 7: a digit is needed"},
		{"no exponent", `{"a":1e}`, "malformed value at byte 7: a digit is needed"},
		{"half a literal", `{"a":nul}`, "malformed value at byte 8: not a JSON value"},
		{"newline in a string", "{\"a\":\"x\ny\"}", "malformed value at byte 7: control character in a string"},
		{"unknown escape", `{"a":"\x"}`, "malformed value at byte 7: unknown escape in a string"},
		{"short escape", `{"a":"\u12"}`, `malformed value at byte 10: four hex digits are needed after "\u"`},
		{"end in an escape", `{"a":"\`, "malformed value at byte 7: unexpected end"},
		{"deep arrays", `{"a":` + strings.Repeat("[", 100_000), "malformed value at byte 516: nested deeper than 512 levels"},
		{"deep objects", strings.Repeat(`{"a":`, 600), "malformed value at byte 2560: nested deeper than 512 levels"},

		{"missing id", with("discrepancy_id", ""), "malformed value: field discrepancy_id: missing"},
		{"missing category", with("category", ""), "malformed value: field category: missing"},
		{"missing context", with("context", ""), "malformed value: field context: missing"},
		{"missing enqueued_ms", with("enqueued_ms", ""), "malformed value: field enqueued_ms: missing"},
		{"empty object", `{}`, "malformed value: field discrepancy_id: missing"},
		{"id of the wrong type", with("discrepancy_id", "17"), at("discrepancy_id", atID, "not a string")},
		{"id null", with("discrepancy_id", "null"), at("discrepancy_id", atID, "not a string")},
		{"id empty", with("discrepancy_id", `""`), at("discrepancy_id", atID, "empty string")},
		{"id too long", with("discrepancy_id", `"`+strings.Repeat("x", 513)+`"`), at("discrepancy_id", atID, "longer than 512 bytes")},
		{"id too long in escapes", with("discrepancy_id", `"`+strings.Repeat(`\u00e9`, 257)+`"`), at("discrepancy_id", atID, "longer than 512 bytes")},
		{"id much too long", with("discrepancy_id", `"`+strings.Repeat("x", 5000)+`"`), at("discrepancy_id", atID, "longer than 512 bytes")},
		{"id with half a surrogate pair", with("discrepancy_id", `"\ud800"`), at("discrepancy_id", atID, "unpaired surrogate")},
		{"id with the low half first", with("discrepancy_id", `"\ude00\ud83d"`), at("discrepancy_id", atID, "unpaired surrogate")},
		{"id with two low halves", with("discrepancy_id", `"\udc00\udc00"`), at("discrepancy_id", atID, "unpaired surrogate")},
		{"id with a pair that misses its low half", with("discrepancy_id", `"\ud83d\ue000"`), at("discrepancy_id", atID, "unpaired surrogate")},
		{"id with half a pair and a rune", with("discrepancy_id", `"\ud83d\u0041"`), at("discrepancy_id", atID, "unpaired surrogate")},
		{"category of the wrong type", with("category", `["c"]`), at("category", atCategory, "not a string")},
		{"context of the wrong type", with("context", `"{}"`), at("context", atContext, "not an object")},
		{"context null", with("context", `null`), at("context", atContext, "not an object")},
		{"verdict of the wrong type", with("verdict", `[]`), at("verdict", atOptional-1, "not an object")},
		{"enqueued_ms as a string", with("enqueued_ms", `"1764547200000"`), at("enqueued_ms", atEnqueued, notInteger)},
		{"enqueued_ms null", with("enqueued_ms", `null`), at("enqueued_ms", atEnqueued, notInteger)},
		{"enqueued_ms with a fraction", with("enqueued_ms", `1764547200000.0`), at("enqueued_ms", atEnqueued, notInteger)},
		{"enqueued_ms with an exponent", with("enqueued_ms", `1e12`), at("enqueued_ms", atEnqueued, notInteger)},
		{"enqueued_ms before 2000", with("enqueued_ms", `946684799999`), at("enqueued_ms", atEnqueued, "before 2000 (milliseconds since 1970 are needed)")},
		{"enqueued_ms in seconds", with("enqueued_ms", `1764547200`), at("enqueued_ms", atEnqueued, "before 2000 (milliseconds since 1970 are needed)")},
		{"enqueued_ms negative", with("enqueued_ms", `-1`), at("enqueued_ms", atEnqueued, "before 2000 (milliseconds since 1970 are needed)")},
		{"enqueued_ms more than a day ahead", with("enqueued_ms", fmt.Sprint(readAt.UnixMilli()+dayMS+1)), at("enqueued_ms", atEnqueued, "more than 24 h ahead (milliseconds since 1970 are needed)")},
		{"enqueued_ms beyond int64", with("enqueued_ms", `99999999999999999999`), at("enqueued_ms", atEnqueued, "more than 24 h ahead (milliseconds since 1970 are needed)")},
		{"negative attempts", with("attempts", `-1`), at("attempts", atOptional, "too small")},
		{"absurd attempts", with("attempts", `2147483648`), at("attempts", atOptional, "greater than 2147483647")},
		{"attempts beyond int64", with("attempts", `18446744073709551617`), at("attempts", atOptional, "greater than 2147483647")},
		{"negative attempts beyond int64", with("attempts", `-18446744073709551617`), at("attempts", atOptional, "too small")},
		{"attempts with a fraction", with("attempts", `1.5`), at("attempts", atOptional, notInteger)},
		{"attempts as a string", with("attempts", `"1"`), at("attempts", atOptional, notInteger)},
		{"attempts null", with("attempts", `null`), at("attempts", atOptional, notInteger)},
		{"no attempt allowed", with("max_attempts", `0`), at("max_attempts", atOptional+4, "too small")},
		{"absurd max_attempts", with("max_attempts", `1e400`), at("max_attempts", atOptional+4, notInteger)},
		{"duplicate id", `{"discrepancy_id":"r-1","discrepancy_id":"r-2","category":"c","context":{},"enqueued_ms":0}`, at("discrepancy_id", 41, "duplicate field")},
		{"duplicate verdict", `{"verdict":null,"verdict":null}`, at("verdict", 26, "duplicate field")},
		{"a wrong type and, later, broken JSON", `{"attempts":"x",`, "malformed value at byte 16: unexpected end"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			value := []byte(tc.value)
			r, err := readSource(value, header("route", "a"))
			wantMalformed(t, err, tc.want)
			if string(r.Value) != tc.value || string(r.Key) != "acct-17" || r.ID == "" || r.Origin != "recon.dlq/2/17" ||
				r.Input != place || r.Enqueued != arrived || r.Timestamp != arrived || len(r.Foreign) != 1 {
				t.Errorf("what can be known is lost: %+v", r)
			}
		})
	}
}

func TestATombstoneIsMalformedAndKeepsItsIdentity(t *testing.T) {
	r, err := readSource(nil)
	wantMalformed(t, err, "malformed value at byte 0: null value (tombstone), an object is needed")
	whole, err := readSource([]byte(plainValue))
	if err != nil {
		t.Fatal(err)
	}
	if r.ID != whole.ID || r.Origin != whole.Origin || r.Value != nil || r.Enqueued != arrived {
		t.Errorf("read %+v", r)
	}
}

func TestAMalformedRecordStillSaysWhatIsReadable(t *testing.T) {
	r, err := readSource([]byte(`{"discrepancy_id":"r-1","enqueued_ms":1764547200000,"attempts":3,"max_attempts":"x","category":"c","context":{},` + "\xFF"))
	wantMalformed(t, err, "malformed value at byte 112: invalid UTF-8")
	if r.DiscrepancyID != "r-1" || r.Category != "c" || r.Attempt != 3 || r.Enqueued != startMS {
		t.Errorf("read %+v", r)
	}
}

func TestTheDeepestLegalNestingIsRead(t *testing.T) {
	for depth, legal := range map[int]bool{deadletter.MaxDepth: true, deadletter.MaxDepth + 1: false} {
		n := depth - 1 // the record's own object is a level
		value := `{"discrepancy_id":"r-1","category":"c","enqueued_ms":0,"context":` + strings.Repeat(`{"a":`, n-1) + "{}" + strings.Repeat("}", n-1) + "}"
		if _, err := readSource([]byte(value)); (err == nil) != legal {
			t.Errorf("%d levels: %v", depth, err)
		}
	}
}

func TestWhatTheContractDoesNotNameIsFree(t *testing.T) {
	for _, extra := range []string{
		`"a":1,"a":2`,                  // duplicates of other fields
		`"a":{"attempts":-1}`,          // names of the contract further in
		`"a":1e999`,                    // numbers of any size
		`"a":"\ud800"`,                 // half a surrogate pair
		`"":null`,                      // an empty name
		`"a":[[],{},[{}],"",-0.0E-12]`, // all shapes
	} {
		if _, err := readSource([]byte(strings.TrimSuffix(plainValue, "}") + "," + extra + "}")); err != nil {
			t.Errorf("%s: %v", extra, err)
		}
	}
}

func TestEnqueuedIsTheValueClampedToTheArrival(t *testing.T) {
	for _, tc := range []struct {
		name      string
		enqueued  int64
		timestamp int64
		want      int64
		notes     []string
	}{
		{"before the arrival", startMS, arrived, startMS, nil},
		{"at the arrival", arrived, arrived, arrived, nil},
		{"unknown", 0, arrived, arrived, nil},
		{"the first legal time", 946684800000, arrived, 946684800000, nil},
		{"a little ahead of the arrival", arrived + 1, arrived, arrived, []string{deadletter.NoteEnqueuedAhead}},
		{"a day ahead of the reader", readAt.UnixMilli() + dayMS, arrived, arrived, []string{deadletter.NoteEnqueuedAhead}},
		{"unknown, and no timestamp", 0, -1, readAt.UnixMilli(), nil},
		{"unknown, and a timestamp in seconds", 0, startMS / 1000, readAt.UnixMilli(), nil},
		{"unknown, and a timestamp ahead of the reader", 0, readAt.UnixMilli() + 9999, readAt.UnixMilli(), nil},
		{"ahead of the reader like its timestamp", readAt.UnixMilli() + 9999, readAt.UnixMilli() + 9999, readAt.UnixMilli(), []string{deadletter.NoteEnqueuedAhead}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			value := fmt.Sprintf(`{"discrepancy_id":"r-1","category":"c","context":{},"enqueued_ms":%d}`, tc.enqueued)
			r, err := deadletter.Read(deadletter.Message{Place: place, Timestamp: tc.timestamp, Value: []byte(value)}, options(deadletter.Source))
			if err != nil {
				t.Fatal(err)
			}
			if r.Enqueued != tc.want {
				t.Errorf("enqueued %d, want %d", r.Enqueued, tc.want)
			}
			if want := max(tc.timestamp, 0); r.Timestamp != want {
				t.Errorf("timestamp %d, want %d", r.Timestamp, want)
			}
			wantNotes(t, r, tc.notes...)
		})
	}
}

func TestTheCountersOfAValueReachTheirBounds(t *testing.T) {
	for _, tc := range []struct {
		attempts, maxAttempts string
		attempt, most         int
	}{
		{"0", "1", 0, 1}, {"-0", "1", 0, 1}, {"2147483647", "2147483647", 1<<31 - 1, 1<<31 - 1},
	} {
		r, err := readSource([]byte(`{"discrepancy_id":"r","category":"c","context":{},"enqueued_ms":0,"attempts":` + tc.attempts + `,"max_attempts":` + tc.maxAttempts + `}`))
		if err != nil || r.Attempt != tc.attempt || r.MaxAttempts != tc.most {
			t.Errorf("%+v: read %d, %d, %v", tc, r.Attempt, r.MaxAttempts, err)
		}
	}
}

func TestIdentityDependsOnClusterTopicPartitionAndOffset(t *testing.T) {
	const cluster = "MkU3OEVBNTcwNTJENDM2Qg"
	base := deadletter.Place{Topic: "recon.dlq", TopicID: [16]byte{7}, Partition: 1, Offset: 2}
	want := deadletter.Identity(cluster, base)
	// Held for ever: identities are in headers, audit events and idempotency keys.
	if want != "5ce631fba839b736a6ee1927227f25d9" {
		t.Errorf("identity is %s", want)
	}
	seen := map[string]string{want: "base"}
	for name, p := range map[string]deadletter.Place{
		"a topic of the same name made again": {Topic: "recon.dlq", TopicID: [16]byte{8}, Partition: 1, Offset: 2},
		"another partition":                   {Topic: "recon.dlq", TopicID: [16]byte{7}, Partition: 2, Offset: 2},
		"another offset":                      {Topic: "recon.dlq", TopicID: [16]byte{7}, Partition: 1, Offset: 3},
		"no topic id":                         {Topic: "recon.dlq", Partition: 1, Offset: 2},
		"no topic id, another topic":          {Topic: "other.dlq", Partition: 1, Offset: 2},
	} {
		id := deadletter.Identity(cluster, p)
		if other, ok := seen[id]; ok {
			t.Errorf("%s and %s have one identity", name, other)
		}
		seen[id] = name
	}
	if _, ok := seen[deadletter.Identity("another", base)]; ok {
		t.Error("two clusters share an identity")
	}
	renamed := base
	renamed.Topic = "same.id"
	if deadletter.Identity(cluster, renamed) != want {
		t.Error("the topic's name counts although it has an id")
	}
}

func TestReadNeedsNoClockOfItsOwn(t *testing.T) {
	value := fmt.Appendf(nil, `{"discrepancy_id":"r-1","category":"c","context":{},"enqueued_ms":%d}`, readAt.UnixMilli()+2*dayMS)
	m := deadletter.Message{Place: place, Timestamp: arrived, Value: value}
	o := options(deadletter.Source)
	if _, err := deadletter.Read(m, o); err == nil {
		t.Error("two days ahead is accepted")
	}
	o.Now = o.Now.Add(48 * time.Hour)
	if _, err := deadletter.Read(m, o); err != nil {
		t.Errorf("two days later: %v", err)
	}
}
