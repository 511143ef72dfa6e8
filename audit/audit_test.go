package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

const recordID = "0123456789abcdef0123456789abcdef"

func event() Event {
	return Event{
		Type:     RetryScheduled,
		Source:   "recon-dlq/worker-0",
		Subject:  "D-42",
		Time:     time.Date(2026, 3, 1, 12, 30, 45, 123_999_999, time.UTC),
		RecordID: recordID,
		Origin:   "recon.dlq/3/17",
		Input: deadletter.Place{
			Topic:     "recon.dlq.retry.10s",
			TopicID:   [16]byte{0xde, 0xad, 0xbe, 0xef, 15: 0x01},
			Partition: 2, Offset: 99,
		},
		Attempt:  1,
		Category: "amount_differs",
		Reason:   "http_503",
		Rule:     "default",
		Seq:      7,
	}
}

func TestAnEventIsWrittenAsStructuredCloudEvents(t *testing.T) {
	const want = `{"specversion":"1.0","id":"` + goldenID + `","source":"recon-dlq/worker-0",` +
		`"type":"recon.dlq.retry_scheduled","subject":"D-42","time":"2026-03-01T12:30:45.123Z",` +
		`"datacontenttype":"application/json","data":{"origin":"recon.dlq/3/17","input":"recon.dlq.retry.10s/2/99",` +
		`"input_topic_id":"deadbeef000000000000000000000001","recon_id":"0123456789abcdef0123456789abcdef",` +
		`"attempt":1,"category":"amount_differs","reason":"http_503","rule":"default","seq":7}}`
	if got := string(event().AppendJSON(nil)); got != want {
		t.Errorf("written\n%s\nwant\n%s", got, want)
	}
	if got := string(event().AppendJSON([]byte("before"))); got != "before"+want {
		t.Errorf("appending changed what was there: %s", got)
	}
}

// goldenID must never change: the same event written again must have the same id.
const goldenID = "54c81eee9bb7755b0c9e7e79c2a6aaa6"

func TestALocalTimeIsWrittenInUTC(t *testing.T) {
	e := event()
	want := e.AppendJSON(nil)
	e.Time = e.Time.In(time.FixedZone("elsewhere", 5*3600))
	if got := e.AppendJSON(nil); !bytes.Equal(got, want) {
		t.Errorf("written %s, want %s", got, want)
	}
}

func TestTheIDIsTheSameWhenAnEventIsWrittenAgainAndOnlyThen(t *testing.T) {
	base := event()
	same := map[string]func(e *Event){
		"later":                          func(e *Event) { e.Time = e.Time.Add(time.Hour) },
		"by another worker":              func(e *Event) { e.Source = "other" },
		"with another seq":               func(e *Event) { e.Seq++ },
		"with another reason":            func(e *Event) { e.Reason = "x" },
		"under the topic's id, not name": func(e *Event) { e.Input.Topic = "renamed" },
	}
	for name, change := range same {
		e := base
		if change(&e); e.ID() != base.ID() {
			t.Errorf("written again %s: id %s, want %s", name, e.ID(), base.ID())
		}
	}
	other := map[string]func(e *Event){
		"record":    func(e *Event) { e.RecordID = strings.Repeat("f", 32) },
		"type":      func(e *Event) { e.Type = Resolved },
		"topic":     func(e *Event) { e.Input.TopicID[7]++ },
		"partition": func(e *Event) { e.Input.Partition++ },
		"offset":    func(e *Event) { e.Input.Offset++ },
	}
	for name, change := range other {
		e := base
		if change(&e); e.ID() == base.ID() {
			t.Errorf("another %s has the same id", name)
		}
	}

	base.Input.TopicID = [16]byte{}
	e := base
	if e.Input.Topic = "other"; e.ID() == base.ID() {
		t.Error("where topics have no ids, another topic has the same id")
	}
}

func TestTheKeyIsTheRecordIDAndNullWithoutOne(t *testing.T) {
	if got := event().Key(); string(got) != recordID {
		t.Errorf("key %q, want %q", got, recordID)
	}
	if got := (Event{}).Key(); got != nil {
		t.Errorf("key %q, want nil", got)
	}
}

func TestEveryTypeOfTheSourceIsInTheListThatParseUses(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "audit.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var found []Type
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if name, ok := spec.Type.(*ast.Ident); !ok || name.Name != "Type" {
			return true
		}
		for _, v := range spec.Values {
			text, err := strconv.Unquote(v.(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			found = append(found, Type(text))
		}
		return true
	})
	if len(found) == 0 {
		t.Fatal("no constant of type Type found: does the test still read the right file?")
	}
	if !slices.Equal(found, types) {
		t.Errorf("constants %q\nlist      %q", found, types)
	}
}

func TestEachTypeIsReadBack(t *testing.T) {
	for _, typ := range types {
		e := event()
		e.Type = typ
		if got, err := Parse(e.AppendJSON(nil)); err != nil || got.Type != typ {
			t.Errorf("%s: read back as %q, %v", typ, got.Type, err)
		}
	}
}

func TestWhatIsReadBackIsWhatWasWritten(t *testing.T) {
	e := event()
	got, err := Parse(e.AppendJSON(nil))
	if err != nil {
		t.Fatal(err)
	}
	e.Time = e.Time.Truncate(time.Millisecond)
	if got != e {
		t.Errorf("read\n%+v\nwant\n%+v", got, e)
	}
}

func TestAnExpiredRecordNeedsNoIdentity(t *testing.T) {
	e := event()
	e.Type, e.RecordID, e.Origin, e.Subject = Expired, "", "", ""
	got, err := Parse(e.AppendJSON(nil))
	if err != nil {
		t.Fatal(err)
	}
	if got.Subject != "-" {
		t.Errorf("subject %q, want -", got.Subject)
	}
}

func TestParseRefusesWhatIsNotAnEvent(t *testing.T) {
	good := string(event().AppendJSON(nil))
	replace := func(from, to string) string {
		t.Helper()
		if !strings.Contains(good, from) {
			t.Fatalf("the good event has no %s", from)
		}
		return strings.Replace(good, from, to, 1)
	}
	for name, c := range map[string]struct{ value, where string }{
		"nothing":                   {"", "event"},
		"null":                      {"null", "event"},
		"an array":                  {"[]", "event"},
		"cut short":                 {good[:len(good)-1], "event"},
		"something behind":          {good + "{}", "event: something follows"},
		"a brace behind":            {good + "}", "event: something follows"},
		"not UTF-8":                 {replace("D-42", "D-\xff"), "UTF-8"},
		"another version":           {replace(`"1.0"`, `"0.3"`), "specversion"},
		"an id of another event":    {replace(goldenID, strings.Repeat("0", 32)), "id"},
		"a changed offset":          {replace("/2/99", "/2/98"), "id"},
		"no id":                     {replace(`"id"`, `"no"`), "event.id: missing"},
		"a name in another case":    {replace(`"type"`, `"Type"`), "event.type: missing"},
		"a member twice":            {replace(`"subject"`, `"source":"x","subject"`), "event: a member is there twice"},
		"a data member twice":       {replace(`"rule"`, `"seq":1,"rule"`), "data: a member is there twice"},
		"no source":                 {replace("recon-dlq/worker-0", ""), "source"},
		"no subject":                {replace("D-42", ""), "subject"},
		"a number for a text":       {replace(`"D-42"`, `42`), "event.subject: not a string"},
		"null for a text":           {replace(`"D-42"`, `null`), "event.subject: not a string"},
		"another content type":      {replace("application/json", "text/plain"), "datacontenttype"},
		"a time without zone":       {replace("45.123Z", "45.123"), "time"},
		"a time with another zone":  {replace("45.123Z", "45.123+01:00"), "time"},
		"a time with microseconds":  {replace("45.123Z", "45.123456Z"), "time"},
		"a day that is not":         {replace("2026-03-01", "2026-02-30"), "time"},
		"data that is a text":       {replace(`"data":{`, `"data":"x","more":{`), "data"},
		"an origin without offset":  {replace("recon.dlq/3/17", "recon.dlq/3"), "origin"},
		"an origin that is missing": {replace("recon.dlq/3/17", ""), "origin"},
		"an input with a sign":      {replace("/2/99", "/+2/99"), "input"},
		"a topic id in upper case":  {replace("deadbeef", "DEADBEEF"), "input_topic_id"},
		"no topic id":               {replace(`"input_topic_id"`, `"other"`), "id"},
		"a short record id":         {replace(recordID, recordID[1:]), "recon_id"},
		"a negative attempt":        {replace(`"attempt":1`, `"attempt":-1`), "data.attempt"},
		"a fraction of an attempt":  {replace(`"attempt":1`, `"attempt":1.0`), "data.attempt"},
		"an attempt that overflows": {replace(`"attempt":1`, `"attempt":9999999999`), "data.attempt"},
		"a text for a number":       {replace(`"seq":7`, `"seq":"7"`), "data.seq"},
		"a seq of zero":             {replace(`"seq":7`, `"seq":0`), "data.seq"},
		"no seq":                    {replace(`,"seq":7`, ``), "data.seq: missing"},
	} {
		got, err := Parse([]byte(c.value))
		if err == nil || !strings.Contains(err.Error(), c.where) {
			t.Errorf("%s: error %v, want one that names %q", name, err, c.where)
		}
		if got != (Event{}) {
			t.Errorf("%s: an event beside the error: %+v", name, got)
		}
		if err != nil && strings.Contains(err.Error(), "D-") {
			t.Errorf("%s: the error carries content: %v", name, err)
		}
	}
}

func TestATypeOfANewerVersionIsToldApart(t *testing.T) {
	value := strings.Replace(string(event().AppendJSON(nil)), string(RetryScheduled), "recon.dlq.unheard_of", 1)
	if _, err := Parse([]byte(value)); !errors.Is(err, ErrUnknownType) {
		t.Errorf("error %v, want ErrUnknownType", err)
	}
}

func TestMembersOfANewerVersionAreIgnored(t *testing.T) {
	value := string(event().AppendJSON(nil))
	value = strings.Replace(value, `"data":{`, `"traceparent":"00-x","data":{"more":{"a":[1]},`, 1)
	if _, err := Parse([]byte(value)); err != nil {
		t.Error(err)
	}
}

func TestLongTextsAreCutOnARuneBoundary(t *testing.T) {
	e := event()
	e.Subject = strings.Repeat("a", MaxField-1) + "€uro"
	e.Category = strings.Repeat("\x00", 1<<20)
	value := e.AppendJSON(nil)
	if len(value) > 20<<10 {
		t.Errorf("the event has %d bytes", len(value))
	}
	got, err := Parse(value)
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Repeat("a", MaxField-1); got.Subject != want {
		t.Errorf("subject of %d bytes ends in %q, want %d", len(got.Subject), got.Subject[len(got.Subject)-4:], len(want))
	}
	if len(got.Category) != MaxField {
		t.Errorf("category of %d bytes, want %d", len(got.Category), MaxField)
	}
}

func TestAnEventTakesNoFieldValueFromARecord(t *testing.T) {
	r := &deadletter.Record{
		ID: recordID, Origin: "recon.dlq/0/1", Input: deadletter.Place{Topic: "recon.dlq", Offset: 1},
		DiscrepancyID: "D-1", Category: "amount_differs", Attempt: 2,
		ErrorClass: "secret-class", Error: "secret-error", Reason: "secret-reason", Notes: []string{"secret-note"},
		Key:     []byte("secret-key"),
		Value:   []byte(`{"discrepancy_id":"D-1","context":{"pan":"secret-pan"},"verdict":{"why":"secret-verdict"}}`),
		Foreign: []deadletter.Header{{Key: "secret-header", Value: []byte("secret-header-value")}},
	}
	for _, typ := range types {
		e := New(typ, "w", time.UnixMilli(1_700_000_000_000), r)
		e.Seq = 1
		value := e.AppendJSON(nil)
		if bytes.Contains(value, []byte("secret")) {
			t.Errorf("%s: %s", typ, value)
		}
		got, err := Parse(value)
		if err != nil {
			t.Fatal(err)
		}
		if got.Subject != "D-1" || got.RecordID != r.ID || got.Origin != r.Origin || got.Input != r.Input || got.Attempt != 2 || got.Category != r.Category {
			t.Errorf("%s: the event does not name the record: %+v", typ, got)
		}
	}
}

func TestARecordWithoutDiscrepancyIDHasADashForSubject(t *testing.T) {
	if e := New(Poisoned, "w", time.Now(), &deadletter.Record{}); e.Subject != "-" {
		t.Errorf("subject %q", e.Subject)
	}
}

func TestThePartitionOfAnOriginNeverChanges(t *testing.T) {
	for _, c := range []struct {
		topic                       string
		partition, partitions, want int32
	}{
		{"recon.dlq", 0, 12, 7},
		{"recon.dlq", 1, 12, 0},
		{"recon.dlq", 2, 12, 9},
		{"recon.dlq", 2147483647, 50, 49},
		{"", 0, 7, 5},
		{"recon.dlq", 5, 1, 0},
		{"recon.dlq", 5, 0, 0},
		{"recon.dlq", 5, -1, 0},
	} {
		if got := Partition(c.topic, c.partition, c.partitions); got != c.want {
			t.Errorf("Partition(%q, %d, %d) = %d, want %d", c.topic, c.partition, c.partitions, got, c.want)
		}
	}
}

func TestThePartitionIsFNV1aOfTopicAndPartition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		topic := rapid.StringMatching(`[a-z0-9._-]{0,40}`).Draw(t, "topic")
		p := rapid.Int32Min(0).Draw(t, "partition")
		n := rapid.Int32Range(2, 1000).Draw(t, "partitions")
		h := fnv.New64a()
		h.Write([]byte(topic))
		h.Write([]byte{0, byte(p >> 24), byte(p >> 16), byte(p >> 8), byte(p)})
		if got, want := Partition(topic, p, n), int32(h.Sum64()%uint64(n)); got != want {
			t.Fatalf("partition %d, want %d", got, want)
		}
	})
}

func TestOriginsSpreadOverThePartitions(t *testing.T) {
	var count [12]int
	for p := range int32(1200) {
		count[Partition("recon.dlq", p, 12)]++
	}
	for p, n := range count {
		if n < 60 || n > 150 {
			t.Errorf("partition %d has %d of 1200 origins", p, n)
		}
	}
}

func TestAnOriginIsReadOnlyInItsExactForm(t *testing.T) {
	for _, c := range []struct {
		origin    string
		topic     string
		partition int32
		ok        bool
	}{
		{"recon.dlq/0/0", "recon.dlq", 0, true},
		{"a/2147483647/9223372036854775807", "a", 2147483647, true},
		{origin: ""}, {origin: "a"}, {origin: "a/1"}, {origin: "a/1/"}, {origin: "/1/2"}, {origin: "a//2"},
		{origin: "a/1/2/3"}, {origin: "a/-1/2"}, {origin: "a/+1/2"}, {origin: "a/01/2"}, {origin: "a/1/02"},
		{origin: "a/2147483648/2"}, {origin: "a/1/9223372036854775808"}, {origin: "a b/1/2"}, {origin: "ä/1/2"},
		{origin: "a/1/2\n"}, {origin: strings.Repeat("a", 250) + "/1/2"},
	} {
		topic, partition, ok := OriginTopic(c.origin)
		if topic != c.topic || partition != c.partition || ok != c.ok {
			t.Errorf("OriginTopic(%q) = %q, %d, %v", c.origin, topic, partition, ok)
		}
	}
}

// written is what a reader must find of a text that AppendJSON wrote.
func written(s string) string {
	return string([]rune(cut(s, MaxField))) // each byte that is not UTF-8 becomes one U+FFFD
}

func FuzzEvent(f *testing.F) {
	f.Add("recon-dlq/w", "D-1", "amount", "http_503", "default", int64(1), int64(0), int64(1_700_000_000_000), uint8(0))
	f.Add("w", "\xff\"\\\u2028\x00\x7f<&>", "\xed\xa0\x80", "\t\r\n\b", "\xf0\x9f\x92", int64(9), int64(3), int64(-1), uint8(6))
	f.Add("", strings.Repeat("ü", 600), "", "", "", int64(0), int64(-1), int64(253402300799999), uint8(3))
	f.Fuzz(func(t *testing.T, source, subject, category, reason, rule string, seq, offset, ms int64, typ uint8) {
		e := event()
		e.Type = types[int(typ)%len(types)]
		e.Source, e.Subject, e.Category, e.Reason, e.Rule, e.Seq = source, subject, category, reason, rule, seq
		e.Input.Offset, e.Time = offset, time.UnixMilli(ms).UTC()
		value := e.AppendJSON(nil)

		var std struct {
			Source, Subject string
			Data            struct {
				Input, Category, Reason, Rule string
				Seq                           int64
			}
		}
		if !utf8.Valid(value) {
			t.Fatalf("not UTF-8: %q", value)
		}
		if err := json.Unmarshal(value, &std); err != nil {
			t.Fatalf("encoding/json refuses %s: %v", value, err)
		}
		wantSubject := written(subject)
		if wantSubject == "" {
			wantSubject = "-"
		}
		if std.Source != written(source) || std.Subject != wantSubject || std.Data.Category != written(category) ||
			std.Data.Reason != written(reason) || std.Data.Rule != written(rule) || std.Data.Seq != seq {
			t.Fatalf("encoding/json reads %+v from %s", std, value)
		}

		got, err := Parse(value)
		legal := source != "" && seq >= 1 && offset >= 0 && e.Time.Year() >= 0 && e.Time.Year() <= 9999
		if (err == nil) != legal {
			t.Fatalf("legal is %v, but Parse answers %v for %s", legal, err, value)
		}
		if err != nil {
			return
		}
		want := e
		want.Source, want.Subject, want.Category, want.Reason, want.Rule = written(source), wantSubject, written(category), written(reason), written(rule)
		if got != want {
			t.Fatalf("read\n%+v\nwant\n%+v", got, want)
		}
		if again := got.AppendJSON(nil); len(value) < MaxField && !bytes.Equal(again, value) {
			t.Fatalf("written again\n%s\nfirst\n%s", again, value)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add(event().AppendJSON(nil))
	f.Add([]byte(`{"specversion":"1.0","data":{}}`))
	f.Add([]byte(`{`))
	f.Fuzz(func(t *testing.T, value []byte) {
		e, err := Parse(value)
		if err != nil {
			return
		}
		again, err := Parse(e.AppendJSON(nil))
		if err != nil {
			t.Fatalf("an accepted event is refused when written again: %v", err)
		}
		if again.ID() != e.ID() {
			t.Fatalf("the id changed")
		}
	})
}

func BenchmarkAppendJSON(b *testing.B) {
	e, buf := event(), make([]byte, 0, 1024)
	b.ReportAllocs()
	for b.Loop() {
		buf = e.AppendJSON(buf[:0])
	}
}
