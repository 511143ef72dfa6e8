package ledger_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/recon-dlq/recon-dlq/internal/demo/data"
	"github.com/recon-dlq/recon-dlq/internal/demo/ledger"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

func open(t *testing.T, o ledger.Options) *ledger.Ledger {
	t.Helper()
	l, err := ledger.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// request is a call by the handler contract.
func request(ctx context.Context, t *testing.T, url, key string, value []byte) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(value))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{
		"Ce-Specversion": "1.0", "Ce-Id": key, "Ce-Type": "recon.dlq.remediate", "Ce-Source": "test", "Content-Type": "application/json", "Idempotency-Key": key,
	} {
		r.Header.Set(k, v)
	}
	return r
}

// call posts a value to the handler and returns status and the body's "status".
func call(t *testing.T, l *ledger.Ledger, key string, value []byte) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	l.Handler().ServeHTTP(w, request(t.Context(), t, "/remediate", key, value))
	var reply struct{ Status string }
	if err := json.Unmarshal(w.Body.Bytes(), &reply); err != nil {
		t.Fatalf("answer %q: %v", w.Body, err)
	}
	return w.Code, reply.Status
}

func stats(t *testing.T, l *ledger.Ledger) ledger.Stats {
	t.Helper()
	s, err := l.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func snapshot(t *testing.T, l *ledger.Ledger) []data.Entry {
	t.Helper()
	s, err := l.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func entry(t *testing.T, l *ledger.Ledger, id string) (data.Entry, bool) {
	t.Helper()
	s := snapshot(t, l)
	i := slices.IndexFunc(s, func(e data.Entry) bool { return e.ID == id })
	if i < 0 {
		return data.Entry{}, false
	}
	return s[i], true
}

// first is the first discrepancy of a category.
func first(t *testing.T, category string) data.Discrepancy {
	t.Helper()
	ds := data.Discrepancies()
	return ds[slices.IndexFunc(ds, func(d data.Discrepancy) bool { return d.Category == category })]
}

func source(t *testing.T, id string) data.Entry {
	t.Helper()
	s := data.Source()
	i := slices.IndexFunc(s, func(e data.Entry) bool { return e.ID == id })
	if i < 0 {
		t.Fatalf("source has no %s", id)
	}
	return s[i]
}

func TestEachCategoryIsSettledAsTheSourceSays(t *testing.T) {
	l := open(t, ledger.Options{})
	for _, category := range []string{data.AmountDiffers, data.MissingInTarget, data.StaleVersion} {
		d := first(t, category)
		want := source(t, d.EntryID)
		if got, _ := entry(t, l, d.EntryID); got == want {
			t.Errorf("%s: the ledger is right before", category)
		}
		if code, status := call(t, l, category, d.Value); code != 200 || status != "DONE" {
			t.Errorf("%s is answered %d %s", category, code, status)
		}
		if got, _ := entry(t, l, d.EntryID); got != want {
			t.Errorf("%s: ledger has %+v, want %+v", category, got, want)
		}
	}
	d := first(t, data.OrphanInTarget)
	if code, status := call(t, l, "orphan", d.Value); code != 200 || status != "DONE" {
		t.Errorf("orphan is answered %d %s", code, status)
	}
	if got, ok := entry(t, l, d.EntryID); !ok || got.State != data.Reversed {
		t.Errorf("orphan: ledger has %+v, want it kept and reversed", got)
	}
	if s := stats(t, l); s.Applied != 4 || s.Duplicates != 0 || s.Calls != 4 {
		t.Errorf("stats are %+v", s)
	}
}

func TestTheSameKeyIsAppliedOnce(t *testing.T) {
	l := open(t, ledger.Options{})
	d := first(t, data.AmountDiffers)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if code, _ := call(t, l, "k", d.Value); code != 200 {
				t.Errorf("answered %d", code)
			}
		})
	}
	wg.Wait()
	if s := stats(t, l); s.Applied != 1 || s.Replayed != 19 || s.Duplicates != 0 {
		t.Errorf("stats are %+v", s)
	}
}

func TestAnotherKeyForTheSameFixFindsItDone(t *testing.T) {
	l := open(t, ledger.Options{})
	for _, category := range []string{data.AmountDiffers, data.MissingInTarget, data.StaleVersion, data.OrphanInTarget} {
		d := first(t, category)
		call(t, l, category+"-0", d.Value)
		if code, status := call(t, l, category+"-1", d.Value); code != 200 || status != "SUPERSEDED" {
			t.Errorf("%s again is answered %d %s", category, code, status)
		}
	}
	if s := stats(t, l); s.Applied != 4 || s.Superseded != 4 || s.Duplicates != 0 {
		t.Errorf("stats are %+v", s)
	}
}

func TestAFixThatIsMadeTwiceIsSeen(t *testing.T) {
	l := open(t, ledger.Options{})
	d := first(t, data.AmountDiffers)
	call(t, l, "k0", d.Value)
	want := source(t, d.EntryID)
	want.Version++ // a second fix of the same discrepancy, under another key
	value := fmt.Appendf(nil, `{"discrepancy_id":%q,"category":"amount_differs","context":{"source":%s},"enqueued_ms":0}`, d.ID, marshal(t, want))
	if code, status := call(t, l, "k1", value); code != 200 || status != "DONE" {
		t.Fatalf("answered %d %s", code, status)
	}
	if s := stats(t, l); s.Duplicates != 1 {
		t.Errorf("stats are %+v, want one duplicate", s)
	}
}

func marshal(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestALateRetryLosesAgainstANewerFix(t *testing.T) {
	l := open(t, ledger.Options{})
	d := first(t, data.StaleVersion)
	newer := source(t, d.EntryID)
	newer.Version += 10
	newer.AmountMinor = 7
	value := fmt.Appendf(nil, `{"discrepancy_id":"d-9","category":"amount_differs","context":{"source":%s},"enqueued_ms":0}`, marshal(t, newer))
	call(t, l, "newer", value)
	if code, status := call(t, l, "late", d.Value); code != 200 || status != "SUPERSEDED" {
		t.Errorf("late retry is answered %d %s", code, status)
	}
	if got, _ := entry(t, l, d.EntryID); got != newer {
		t.Errorf("ledger has %+v, want the newer %+v", got, newer)
	}
}

func TestWhatCanNeverSucceedIsRejectedAndNotNoted(t *testing.T) {
	l := open(t, ledger.Options{})
	d := first(t, data.CurrencyUnknown)
	for i, c := range []struct {
		value string
		want  int
	}{
		{string(d.Value), 422},
		{string(d.Value), 422}, // the same key again: a rejection is not an effect
		{`{"discrepancy_id":"x","category":"who_knows","context":{}}`, 422},
		{`{"discrepancy_id":"x","category":"amount_differs","context":{}}`, 422},
		{`{"discrepancy_id":"x","category":"orphan_in_target","context":{}}`, 422},
		{`{"discrepancy_id":"x","category":"missing_in_target","context":{"source":{"id":"e","account":"nobody","currency":"EUR","version":1,"state":"booked"}}}`, 422},
		{`{"discrepancy_id":"x","category":"missing_in_target","context":{"source":{"id":"","account":"merchant-001","currency":"` + data.Accounts()[0].Currency + `","version":1,"state":"booked"}}}`, 422},
		{`not json`, 400},
		{``, 400},
	} {
		if code, status := call(t, l, "k", []byte(c.value)); code != c.want || status != "ERROR" {
			t.Errorf("%d: answered %d %s, want %d", i, code, status, c.want)
		}
	}
	if s := stats(t, l); s.Applied != 0 || s.Rejected != 9 || s.Replayed != 0 {
		t.Errorf("stats are %+v", s)
	}
}

func TestACallOutsideTheContractIsRejected(t *testing.T) {
	l := open(t, ledger.Options{})
	d := first(t, data.AmountDiffers)
	for _, missing := range []string{"Ce-Specversion", "Ce-Id", "Ce-Type", "Ce-Source", "Idempotency-Key"} {
		r := request(t.Context(), t, "/remediate", "k", d.Value)
		r.Header.Del(missing)
		w := httptest.NewRecorder()
		l.Handler().ServeHTTP(w, r)
		if w.Code != 400 || !strings.Contains(strings.ToLower(w.Body.String()), strings.ToLower(missing)) {
			t.Errorf("without %s it is answered %d %s", missing, w.Code, w.Body)
		}
	}
	w := httptest.NewRecorder()
	l.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/remediate", nil))
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("GET is answered %d", w.Code)
	}
	w = httptest.NewRecorder()
	l.Handler().ServeHTTP(w, request(t.Context(), t, "/remediate", "k", make([]byte, 3<<20)))
	if w.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("3 MiB are answered %d", w.Code)
	}
}

func TestAThirdFailsOnceAndTheSameThirdEachTime(t *testing.T) {
	var before map[string]bool
	for range 2 {
		l := open(t, ledger.Options{FailOnce: 1.0 / 3})
		failed := map[string]bool{}
		ds := data.Discrepancies()[:600]
		for _, d := range ds {
			if code, _ := call(t, l, d.ID, d.Value); code == 500 {
				failed[d.ID] = true
				if code, _ := call(t, l, d.ID, d.Value); code == 500 {
					t.Errorf("%s fails twice", d.ID)
				}
			}
		}
		if n := len(failed); n < 150 || n > 250 {
			t.Errorf("%d of %d failed once, want about a third", n, len(ds))
		}
		if s := stats(t, l); s.FailedOnce != int64(len(failed)) {
			t.Errorf("stats are %+v, %d failed", s, len(failed))
		}
		if before != nil && fmt.Sprint(before) != fmt.Sprint(failed) {
			t.Error("other records failed the second time")
		}
		before = failed
	}
}

func TestNamedRecordsFailAsOftenAsTheyAreToldTo(t *testing.T) {
	var seen []string
	ds := data.Discrepancies()[:4]
	l := open(t, ledger.Options{
		Faults: map[string]int{ds[0].ID: 2, ds[1].ID: -1},
		OnCall: func(h http.Header) { seen = append(seen, h.Get("Idempotency-Key")) },
	})
	want := map[string][]int{ds[0].ID: {500, 500, 200}, ds[1].ID: {500, 500, 500}, ds[2].ID: {200, 200, 200}}
	for i := range 3 {
		for _, d := range ds[:3] {
			if code, _ := call(t, l, d.ID, d.Value); code != want[d.ID][i] {
				t.Errorf("call %d of %s is answered %d, want %d", i+1, d.ID, code, want[d.ID][i])
			}
		}
	}
	if s := stats(t, l); s.Faulted != 5 || s.Applied != 2 || s.Replayed != 2 {
		t.Errorf("stats are %+v", s)
	}
	if len(seen) != 9 || seen[0] != ds[0].ID {
		t.Errorf("told of the calls %v", seen)
	}
}

func TestTheFirstCallAfterAnOutageIsSparedFromPassingFaults(t *testing.T) {
	ds := data.Discrepancies()[:3]
	l := open(t, ledger.Options{Faults: map[string]int{ds[0].ID: 2, ds[1].ID: 2, ds[2].ID: -1}})
	if code, _ := call(t, l, ds[0].ID, ds[0].Value); code != 500 {
		t.Errorf("before it is answered %d", code)
	}
	if err := l.Down(ledger.Unavailable); err != nil {
		t.Fatal(err)
	}
	if err := l.Up(); err != nil {
		t.Fatal(err)
	}
	if code, _ := call(t, l, ds[2].ID, ds[2].Value); code != 500 {
		t.Errorf("one that always fails is answered %d", code)
	}
	if code, _ := call(t, l, ds[0].ID, ds[0].Value); code != 200 {
		t.Errorf("the first is answered %d", code)
	}
	if code, _ := call(t, l, ds[1].ID, ds[1].Value); code != 500 {
		t.Errorf("the second is answered %d", code)
	}
}

func TestAShareIsRefusedForEver(t *testing.T) {
	l := open(t, ledger.Options{Refuse: 0.1})
	refused := 0
	for i := range 500 {
		d := first(t, data.AmountDiffers)
		key := fmt.Sprint("k", i)
		code, _ := call(t, l, key, d.Value)
		if again, _ := call(t, l, key, d.Value); again != code {
			t.Errorf("%s is answered %d, then %d", key, code, again)
		}
		if code == 422 {
			refused++
		}
	}
	if refused < 25 || refused > 80 {
		t.Errorf("%d of 500 refused, want about a tenth", refused)
	}
}

func TestARefusingOutageIsARefusedConnectionAndEndsOnTheSameAddress(t *testing.T) {
	l := open(t, ledger.Options{})
	if err := l.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	client := &http.Client{}
	defer client.CloseIdleConnections()
	d := first(t, data.AmountDiffers)
	post := func() (int, error) {
		resp, err := client.Do(request(t.Context(), t, l.URL(), "k", d.Value))
		if err != nil {
			return 0, err
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode, resp.Body.Close()
	}
	if code, err := post(); code != 200 || err != nil {
		t.Fatalf("answered %d, %v", code, err)
	}
	for range 3 {
		if err := l.Down(ledger.Refusing); err != nil {
			t.Fatal(err)
		}
		if _, err := post(); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("a call during the outage ends with %v", err)
		}
		if err := l.Up(); err != nil {
			t.Fatal(err)
		}
		if code, err := post(); code != 200 || err != nil {
			t.Errorf("after the outage it is answered %d, %v", code, err)
		}
	}
	if s := stats(t, l); s.Applied != 1 || s.Replayed != 3 {
		t.Errorf("stats are %+v: the ledger forgot in the outage", s)
	}
}

func TestAnUnavailableLedgerAnswers503AndChangesNothing(t *testing.T) {
	l := open(t, ledger.Options{})
	d := first(t, data.AmountDiffers)
	if err := l.Down(ledger.Unavailable); err != nil {
		t.Fatal(err)
	}
	if code, _ := call(t, l, "k", d.Value); code != 503 {
		t.Errorf("answered %d", code)
	}
	if err := l.Up(); err != nil {
		t.Fatal(err)
	}
	if s := stats(t, l); s.Applied != 0 || s.Down != 1 || l.Outage() != "" {
		t.Errorf("stats are %+v", s)
	}
	if code, status := call(t, l, "k", d.Value); code != 200 || status != "DONE" {
		t.Errorf("after the outage it is answered %d %s", code, status)
	}
}

func TestAHangingLedgerAnswersNobodyUntilTheyGiveUp(t *testing.T) {
	l := open(t, ledger.Options{})
	if err := l.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	if err := l.Down(ledger.Hanging); err != nil {
		t.Fatal(err)
	}
	client := &http.Client{}
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	d := first(t, data.AmountDiffers)
	resp, err := client.Do(request(ctx, t, l.URL(), "k", d.Value))
	if err == nil {
		_ = resp.Body.Close()
		t.Fatalf("answered %d", resp.StatusCode)
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("ended with %v", err)
	}
	if s := stats(t, l); s.Applied != 0 || s.Down != 1 {
		t.Errorf("stats are %+v", s)
	}
}

func TestACallerThatGivesUpDoesNotLoseTheLedgerInMemory(t *testing.T) {
	l := open(t, ledger.Options{})
	d := first(t, data.AmountDiffers)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l.Handler().ServeHTTP(httptest.NewRecorder(), request(ctx, t, "/remediate", "k", d.Value))
	if got, want := len(snapshot(t, l)), len(data.Ledger()); got != want {
		t.Errorf("ledger has %d entries, want %d", got, want)
	}
	if code, status := call(t, l, "k", d.Value); code != 200 || status != "REPLAYED" {
		t.Errorf("the retry is answered %d %s", code, status)
	}
}

func TestOnceAllIsSettledOnlyPoisonIsDifferent(t *testing.T) {
	l := open(t, ledger.Options{})
	poison := map[string]bool{}
	settled := 0
	for _, d := range data.Discrepancies() {
		if d.Malformed || d.Hopeless {
			poison[d.ID] = true
		}
		if d.Malformed {
			continue // no target is called with it
		}
		code, _ := call(t, l, d.ID, d.Value)
		if want := map[bool]int{false: 200, true: 422}[d.Hopeless]; code != want {
			t.Errorf("%s (%s) is answered %d, want %d", d.ID, d.Category, code, want)
		}
		settled++
	}
	diffs := ledger.Compare(snapshot(t, l))
	if len(diffs) != len(poison) {
		t.Errorf("%d entries differ, want the %d in poison", len(diffs), len(poison))
	}
	for _, d := range diffs {
		if !poison[d.DiscrepancyID] {
			t.Errorf("%s differs: %+v, want %+v", d.EntryID, d.Ledger, d.Source)
		}
	}
	if s := stats(t, l); s.Applied != int64(settled-12) || s.Duplicates != 0 {
		t.Errorf("stats are %+v, want %d applied", s, settled-12)
	}
}

func TestBeforeAnyFixEveryDiscrepancyIsADifference(t *testing.T) {
	diffs := ledger.Compare(data.Ledger())
	ds := data.Discrepancies()
	if len(diffs) != len(ds) {
		t.Fatalf("%d entries differ, want %d", len(diffs), len(ds))
	}
	for i, d := range diffs {
		if d.EntryID != ds[i].EntryID || d.DiscrepancyID != ds[i].ID {
			t.Errorf("difference %d is of %s (%s), want %s (%s)", i, d.EntryID, d.DiscrepancyID, ds[i].EntryID, ds[i].ID)
		}
	}
}

func TestCompareSeesEachKindOfDifference(t *testing.T) {
	right := data.Source()
	if diffs := ledger.Compare(right); len(diffs) != 0 {
		t.Fatalf("the source differs from itself in %d entries", len(diffs))
	}
	changed := slices.Clone(right)
	changed[3].AmountMinor++
	gone := changed[7].ID
	changed = slices.Delete(changed, 7, 8)
	changed = append(changed, data.Entry{ID: "e-990001", State: data.Booked}, data.Entry{ID: "e-990002", State: data.Reversed})
	var ids []string
	for _, d := range ledger.Compare(changed) {
		ids = append(ids, d.EntryID)
	}
	if want := []string{right[3].ID, gone, "e-990001"}; !slices.Equal(ids, want) {
		t.Errorf("%v differ, want %v", ids, want)
	}
}

func TestServeRunsUntilItsContextEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	ctx, cancel := context.WithCancel(t.Context())
	addr := make(chan string, 1)
	ended := make(chan error, 1)
	go func() {
		ended <- ledger.Serve(ctx, "127.0.0.1:0", ledger.Options{Path: path, Latency: time.Millisecond}, func(a string) { addr <- a })
	}()
	client := &http.Client{}
	defer client.CloseIdleConnections()
	base := "http://" + <-addr
	resp, err := client.Do(request(t.Context(), t, base+"/remediate", "k", first(t, data.MissingInTarget).Value))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	resp, err = client.Get(base + "/stats")
	if err != nil {
		t.Fatal(err)
	}
	var s ledger.Stats
	if err := json.NewDecoder(resp.Body).Decode(&s); err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if s.Applied != 1 || s.Calls != 1 {
		t.Errorf("stats are %+v", s)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("ended with %v", err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

func TestAnAddressInUseIsAnError(t *testing.T) {
	l := open(t, ledger.Options{})
	if err := l.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	if err := ledger.Serve(t.Context(), l.Addr(), ledger.Options{}, nil); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("ended with %v", err)
	}
	if err := l.Start("127.0.0.1:0"); err == nil {
		t.Error("started twice")
	}
}

func TestOptionsOutOfRangeAreRefused(t *testing.T) {
	for _, o := range []ledger.Options{{FailOnce: 1.1}, {FailOnce: -0.1}, {Refuse: 2}, {Latency: -1}} {
		if _, err := ledger.New(o); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
}
