package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/recon-dlq/recon-dlq/test/brokers"
)

// discrepancy is a valid line. Its spaces and its unknown field are to stay.
func discrepancy(id string) string {
	return fmt.Sprintf(`{"discrepancy_id": %q,  "category":"amount_mismatch","context":{"account":"a-%s","n":17},"enqueued_ms":0, "unknown" : [1.0]}`, id, id)
}

// prepared is a cluster whose topics exist.
func prepared(t *testing.T, b brokers.Broker) cluster {
	t.Helper()
	c := newCluster(t, b.Addrs()...)
	if code, _, stderr := c.run(t.Context(), nil, "topics", "apply"); code != ExitOK {
		t.Fatalf("topics apply: exit %d, %s", code, stderr)
	}
	return c
}

// contents is what is in a topic, key to value, in order of the values.
func contents(t *testing.T, b brokers.Broker, topic string) (keys, values []string) {
	t.Helper()
	records, err := brokers.ReadAll(t.Context(), b, topic)
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(records, func(a, b *kgo.Record) int { return bytes.Compare(a.Value, b.Value) })
	for _, r := range records {
		keys = append(keys, string(r.Key))
		values = append(values, string(r.Value))
	}
	return keys, values
}

func TestEnqueueSendsEveryGoodLineUntouchedAndReportsEveryBadOne(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		c := prepared(t, b)
		const secret = "4111111111111111"
		input := strings.Join([]string{
			discrepancy("d1") + "\n",
			"\n",
			discrepancy("d2") + "\r\n",
			"  \t\r\n",
			`{"discrepancy_id": "` + secret + "\n",
			`[1, 2, "` + secret + `"]` + "\n",
			`{"discrepancy_id":"d3","category":"` + secret + `","context":{}}` + "\n",
			"\x00\xff" + secret + "\n",
			discrepancy("d4"),
		}, "")
		code, out, stderr := c.run(t.Context(), strings.NewReader(input), "enqueue", "-o", "json")
		if code != ExitPartial {
			t.Errorf("exit %d, want %d", code, ExitPartial)
		}
		if got := decode[map[string]int](t, out); len(got) != 2 || got["enqueued"] != 3 || got["refused"] != 4 {
			t.Errorf("stdout is %s", out)
		}
		for _, n := range []int{5, 6, 7, 8} {
			if !strings.Contains(stderr, fmt.Sprintf("line %d: refused: malformed value", n)) {
				t.Errorf("line %d is not reported:\n%s", n, stderr)
			}
		}
		if !strings.Contains(stderr, "enqueued_ms") {
			t.Errorf("the field that is missing is not named:\n%s", stderr)
		}
		if strings.Contains(stderr, secret) || strings.Contains(out, secret) {
			t.Errorf("a line's content is printed:\n%s", stderr)
		}
		if !strings.Contains(stderr, "enqueued 3, refused 4: topic "+c.names.Source) {
			t.Errorf("there is no summary:\n%s", stderr)
		}
		keys, values := contents(t, b, c.names.Source)
		if want := []string{discrepancy("d1"), discrepancy("d2"), discrepancy("d4")}; !slices.Equal(values, want) {
			t.Errorf("the topic has\n%q\nwant\n%q", values, want)
		}
		if want := []string{"d1", "d2", "d4"}; !slices.Equal(keys, want) {
			t.Errorf("keys are %q, want %q", keys, want)
		}
	})
}

func TestEnqueueExitCodes(t *testing.T) {
	b := brokers.NewKfake(t)
	c := prepared(t, b)
	dir := t.TempDir()
	good := filepath.Join(dir, "good.jsonl")
	if err := os.WriteFile(good, []byte(discrepancy("a")+"\n"+discrepancy("b")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name   string
		stdin  string
		args   []string
		code   int
		stderr string
	}{
		{"all lines of a file", "", []string{good}, ExitOK, "enqueued 2, refused 0"},
		{"all lines of stdin", discrepancy("a"), []string{"-"}, ExitOK, "enqueued 1, refused 0"},
		{"another source", discrepancy("a"), []string{"--topic", c.names.Source + ".second"}, ExitOK, "topic " + c.names.Source + ".second"},
		{"no good line", "{}\nnull\n", nil, ExitFailed, "enqueued 0, refused 2"},
		{"empty input", "", nil, ExitNoMatch, "no discrepancy in the input"},
		{"empty lines only", "\n\r\n \n", nil, ExitNoMatch, "no discrepancy in the input"},
		{"no such file", "", []string{filepath.Join(dir, "missing")}, ExitFailed, "no such file"},
		{"a directory", "", []string{dir}, ExitFailed, "is a directory: name a file with JSON lines"},
		{"two files", "", []string{good, good}, ExitUsage, "accepts at most 1 arg"},
		{"not a source", "", []string{"--topic", c.names.Poison}, ExitUsage, "is not one of source.topics"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			code, _, stderr := c.run(t.Context(), strings.NewReader(tt.stdin), append([]string{"enqueue"}, tt.args...)...)
			if code != tt.code || !strings.Contains(stderr, tt.stderr) {
				t.Errorf("exit %d, want %d with %q:\n%s", code, tt.code, tt.stderr, stderr)
			}
		})
	}
}

func TestEnqueueNamesAMissingTopicAndABrokerThatIsNotThere(t *testing.T) {
	c := newCluster(t, brokers.NewKfake(t).Addrs()...)
	code, _, stderr := c.run(t.Context(), strings.NewReader(discrepancy("a")), "enqueue")
	if code != ExitFailed || !strings.Contains(stderr, "missing topic: "+c.names.Source+": run `recon-dlq topics apply`") {
		t.Errorf("missing topic: exit %d, %s", code, stderr)
	}
	c = newCluster(t, "127.0.0.1:1")
	code, _, stderr = c.run(t.Context(), strings.NewReader(discrepancy("a")), "enqueue")
	if code != ExitFailed || !strings.Contains(stderr, "cannot reach 127.0.0.1:1: connection refused") {
		t.Errorf("no broker: exit %d, %s", code, stderr)
	}
}

func TestTheKeyIsTheFieldThatKeyFieldNames(t *testing.T) {
	b := brokers.NewKfake(t)
	c := prepared(t, b)
	for _, tt := range []struct{ field, key string }{
		{"category", "amount_mismatch"},
		{"context.account", "a-d1"},
		{"context.n", "17"},
	} {
		if code, _, stderr := c.run(t.Context(), strings.NewReader(discrepancy("d1")), "enqueue", "--key-field", tt.field); code != ExitOK {
			t.Errorf("%s: exit %d, %s", tt.field, code, stderr)
		}
	}
	if keys, _ := contents(t, b, c.names.Source); len(keys) != 3 || !slices.Contains(keys, "amount_mismatch") || !slices.Contains(keys, "a-d1") || !slices.Contains(keys, "17") {
		t.Errorf("keys are %q", keys)
	}
	for _, tt := range []struct{ field, want string }{
		{"nowhere", "line 1: refused: --key-field nowhere: the line has no such field"},
		{"category.deeper", "is not an object"},
		{"context", "neither a string nor a number"},
	} {
		code, _, stderr := c.run(t.Context(), strings.NewReader(discrepancy("d1")), "enqueue", "--key-field", tt.field)
		if code != ExitFailed || !strings.Contains(stderr, tt.want) {
			t.Errorf("%s: exit %d, %s", tt.field, code, stderr)
		}
	}
}

// sized is a valid line of exactly n bytes.
func sized(id string, n int) string {
	line := discrepancy(id)
	return strings.Replace(line, `"account":"`, `"account":"`+strings.Repeat("x", n-len(line)), 1)
}

func TestLinesUpToTheTopicsLimitAreSentAndLongerOnesAreRefusedAlone(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		c := prepared(t, b)
		const limit = 1048588
		long := sized("long", limit-200)
		input := strings.Join([]string{
			discrepancy("first"), long,
			sized("just-too-long", limit), sized("too-long", limit+1), sized("far-too-long", 5<<20),
			discrepancy("last"),
		}, "\n")
		code, out, stderr := c.run(t.Context(), strings.NewReader(input), "enqueue", "-o", "json")
		if got := decode[tally](t, out); code != ExitPartial || got.Enqueued != 3 || got.Refused != 3 {
			t.Errorf("exit %d, %s%s", code, out, stderr)
		}
		for _, n := range []int{3, 4, 5} {
			if !strings.Contains(stderr, fmt.Sprintf("line %d: refused: ", n)) {
				t.Errorf("line %d is not reported:\n%s", n, stderr)
			}
		}
		if !strings.Contains(stderr, "the topic takes at most 1048588 (max.message.bytes)") {
			t.Errorf("the limit is not named:\n%s", stderr)
		}
		if _, values := contents(t, b, c.names.Source); len(values) != 3 || !slices.Contains(values, long) {
			t.Errorf("the topic has %d records", len(values))
		}
	})
}

func TestATopicThatTakesLessThanItToldGetsEachLineAlone(t *testing.T) {
	// A broker that hides a smaller limit (the right to read settings is missing,
	// or the limit has just changed) fails whole batches for their size.
	b := brokers.NewKfake(t)
	c := prepared(t, b)
	refusedBatches := 0
	b.Cluster.ControlKey(int16(kmsg.Produce), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		b.Cluster.KeepControl()
		req := kreq.(*kmsg.ProduceRequest)
		var batch kmsg.RecordBatch
		if err := batch.ReadFrom(req.Topics[0].Partitions[0].Records); err != nil {
			return nil, err, true
		}
		if batch.NumRecords == 1 && len(batch.Records) < 4096 {
			return nil, nil, false
		}
		refusedBatches++
		resp := req.ResponseKind().(*kmsg.ProduceResponse)
		for _, rt := range req.Topics {
			st := kmsg.NewProduceResponseTopic()
			st.Topic, st.TopicID = rt.Topic, rt.TopicID
			for _, rp := range rt.Partitions {
				sp := kmsg.NewProduceResponseTopicPartition()
				sp.Partition, sp.ErrorCode = rp.Partition, kerr.MessageTooLarge.Code
				st.Partitions = append(st.Partitions, sp)
			}
			resp.Topics = append(resp.Topics, st)
		}
		return resp, nil, true
	})
	var lines []string
	for i := range 50 {
		lines = append(lines, discrepancy(fmt.Sprintf("d%02d", i)))
	}
	// One key, so one partition: they share batches.
	code, out, stderr := c.run(t.Context(), strings.NewReader(strings.Join(lines, "\n")), "enqueue", "-o", "json", "--key-field", "category")
	if got := decode[tally](t, out); code != ExitOK || got.Enqueued != 50 {
		t.Errorf("exit %d, %s%s", code, out, stderr)
	}
	if refusedBatches == 0 {
		t.Error("no batch was refused: the test shows nothing")
	}
	if _, values := contents(t, b, c.names.Source); !slices.Equal(values, lines) {
		t.Errorf("the topic has %d records, want each of the 50 once", len(values))
	}
}

func TestAReadErrorStopsAndKeepsWhatWasSent(t *testing.T) {
	b := brokers.NewKfake(t)
	c := prepared(t, b)
	in := io.MultiReader(strings.NewReader(discrepancy("a")+"\n"+discrepancy("half")), iotest.ErrReader(errors.New("disk gone")))
	code, _, stderr := c.run(t.Context(), in, "enqueue")
	if code != ExitPartial || !strings.Contains(stderr, "disk gone") || !strings.Contains(stderr, "stopped after line 1") {
		t.Errorf("exit %d, %s", code, stderr)
	}
	if _, values := contents(t, b, c.names.Source); !slices.Equal(values, []string{discrepancy("a")}) {
		t.Errorf("the topic has %q", values)
	}
}

func TestAnInterruptKeepsWhatWasAcceptedAndSaysHowMuch(t *testing.T) {
	b := brokers.NewKfake(t)
	c := prepared(t, b)
	ctx, interrupt := context.WithCancel(t.Context())
	pr, pw := io.Pipe()
	defer pw.Close()
	go func() {
		// A write ends when the reader has it all: by the third, the lines before are taken or about to be.
		for _, id := range []string{"a", "b"} {
			_, _ = io.WriteString(pw, discrepancy(id)+"\n")
		}
		_, _ = io.WriteString(pw, "\n")
		interrupt()
	}()
	code, out, stderr := c.run(ctx, pr, "enqueue", "-o", "json")
	got := decode[tally](t, out)
	if code != ExitInterrupted || got.Unconfirmed != 0 || !strings.Contains(stderr, "interrupted after line") {
		t.Errorf("exit %d, %s%s", code, out, stderr)
	}
	if _, values := contents(t, b, c.names.Source); len(values) != got.Enqueued || got.Enqueued == 0 {
		t.Errorf("the topic has %d records, enqueue counted %d", len(values), got.Enqueued)
	}
}

func TestBrokersThatConfirmNothingAreGivenUpAndTheLinesNamed(t *testing.T) {
	b := brokers.NewKfake(t, kfake.SeedTopics(1, "source"))
	b.Cluster.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		b.Cluster.KeepControl()
		return nil, errors.New("no answer"), true // the connection ends without one
	})
	cl := brokers.Client(t, append(b.Opts(), enqueueOpts(func() int { return 1 << 20 })...)...)
	e := &enqueuer{
		cl: cl, topic: "source", keyField: defaultKeyField, limit: 1 << 20,
		now: time.Now, stall: 300 * time.Millisecond, grace: time.Second,
		refuse: func(n int, reason string) { t.Errorf("line %d refused: %s", n, reason) },
	}
	got, err := e.run(t.Context(), strings.NewReader(discrepancy("a")+"\n\n"+discrepancy("b")+"\n"))
	if !errors.Is(err, errStalled) {
		t.Errorf("error is %v", err)
	}
	if got.Enqueued != 0 || got.Unconfirmed != 2 || !slices.Equal(got.lines, []int{1, 3}) {
		t.Errorf("tally is %+v", got)
	}
	var stderr bytes.Buffer
	a := &app{err: &stderr}
	exit, ok := errors.AsType[*ExitError](a.conclude("source", got, err))
	if !ok || exit.Code != ExitFailed || !strings.Contains(stderr.String(), "not confirmed 2 (lines 1, 3: they may or may not be in the topic)") {
		t.Errorf("exit %+v, %s", exit, stderr.String())
	}
}

func TestManyLinesAreAllThereOnce(t *testing.T) {
	b := brokers.NewKfake(t)
	c := prepared(t, b)
	const n = 20_000
	var input strings.Builder
	for i := range n {
		input.WriteString(discrepancy(fmt.Sprintf("d%06d", i)) + "\n")
	}
	if code, out, stderr := c.run(t.Context(), strings.NewReader(input.String()), "enqueue", "-o", "json"); code != ExitOK {
		t.Fatalf("exit %d, %s%s", code, out, stderr)
	}
	keys, _ := contents(t, b, c.names.Source)
	if len(keys) != n || len(slices.Compact(keys)) != n {
		t.Errorf("the topic has %d records", len(keys))
	}
}

func TestLinesAreCutAtTheirEndsOnly(t *testing.T) {
	const limit = 10
	tests := []struct {
		input string
		want  []string // "-" for a line that is too long
	}{
		{"", nil},
		{"a", []string{"a"}},
		{"a\nb\n", []string{"a", "b"}},
		{"a\r\n\r\nb", []string{"a", "", "b"}},
		{"a\rb\r\r\n", []string{"a\rb\r"}},
		{"0123456789\r\n01234567890\r\n0123456789", []string{"0123456789", "-", "0123456789"}},
		{strings.Repeat("x", 200_000) + "\nb\n", []string{"-", "b"}},
		{strings.Repeat("x", 200_000), []string{"-"}},
	}
	for _, tt := range tests {
		out := make(chan line, 10)
		if err := readLines(t.Context(), iotest.OneByteReader(strings.NewReader(tt.input)), limit, out); err != nil {
			t.Fatal(err)
		}
		close(out)
		var got []string
		number := 0
		for l := range out {
			number++
			if l.number != number {
				t.Errorf("line %d says it is %d", number, l.number)
			}
			if l.tooLong() {
				got = append(got, "-")
			} else {
				got = append(got, string(l.bytes))
			}
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%.40q is read as %q, want %q", tt.input, got, tt.want)
		}
	}
}

func TestRangesAreShort(t *testing.T) {
	for want, numbers := range map[string][]int{
		"": nil, "3": {3}, "3-4": {3, 4}, "1, 3-5, 9": {1, 3, 4, 5, 9},
	} {
		if got := ranges(numbers); got != want {
			t.Errorf("ranges(%v) is %q, want %q", numbers, got, want)
		}
	}
	var odd []int
	for i := range 100 {
		odd = append(odd, 2*i+1)
	}
	if got := ranges(odd); !strings.HasSuffix(got, "97, 99, and 50 more") {
		t.Errorf("ranges of 100 odd numbers is %q", got)
	}
}
