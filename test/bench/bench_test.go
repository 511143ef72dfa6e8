package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

func TestRowsAreChosenByNameAndNodes(t *testing.T) {
	for _, c := range []struct {
		only  string
		nodes int
		want  []string
	}{
		{"", 0, scenarioNames()}, {"stuck,hop", 0, []string{"hop", "stuck"}}, {"", 3, []string{"hop3"}}, {"hop,hop3", 1, []string{"hop"}},
	} {
		chosen, err := choose(c.only, c.nodes)
		var got []string
		for _, s := range chosen {
			got = append(got, s.name)
		}
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("-only %q -nodes %d: %v (%v), want %v", c.only, c.nodes, got, err, c.want)
		}
	}
	for _, c := range []struct {
		only  string
		nodes int
	}{{"nonsense", 0}, {"hop,", 0}, {"hop", 3}, {"", 2}} {
		if chosen, err := choose(c.only, c.nodes); err == nil {
			t.Errorf("-only %q -nodes %d is taken: %v", c.only, c.nodes, chosen)
		}
	}
}

func TestScenariosOfOneClusterShareIt(t *testing.T) {
	var got []int
	for nodes, group := range byNodes([]scenario{{nodes: 1}, {nodes: 1}, {nodes: 3}}) {
		got = append(got, nodes, len(group))
	}
	if want := []int{1, 2, 3, 1}; !reflect.DeepEqual(got, want) {
		t.Errorf("nodes and scenarios %v, want %v", got, want)
	}
}

func TestARatioSaysHowManyTimesFasterTheFirstWas(t *testing.T) {
	quiet := cpu{all: time.Second}
	loud := cpu{all: time.Second, busy: 500 * time.Millisecond}
	reps := ratios([]measured{{took: 2 * time.Second, used: quiet}}, []measured{{took: 5 * time.Second, used: loud}})
	if len(reps) != 1 || reps[0].Value != 2.5 || reps[0].Foreign != 0.5 {
		t.Errorf("got %+v, want 2.5 times, with the load of the noisier run", reps)
	}
}

func TestValuesAreDiscrepanciesOfModerateCompressibility(t *testing.T) {
	now := time.Now()
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	plain := 0
	for i := range 1000 {
		v := value(i, now)
		if len(v) < valueSize || len(v) > valueSize+64 {
			t.Fatalf("value %d has %d bytes", i, len(v))
		}
		if !bytes.Equal(v, value(i, now)) {
			t.Fatalf("value %d is another one the second time", i)
		}
		if bytes.Equal(v, value(i+1, now)) {
			t.Fatalf("values %d and %d are the same", i, i+1)
		}
		m := deadletter.Message{Place: deadletter.Place{Topic: "b.dlq"}, Timestamp: now.UnixMilli(), Value: v}
		if _, err := deadletter.Read(m, deadletter.ReadOptions{Now: now, ClusterID: "c"}); err != nil || !json.Valid(v) {
			t.Fatalf("value %d is malformed: %v\n%s", i, err, v)
		}
		plain += len(v)
		w.Write(v) //nolint:errcheck // a buffer takes everything
	}
	w.Close()
	if ratio := float64(plain) / float64(packed.Len()); ratio < 2 || ratio > 6 {
		t.Errorf("values compress %.1f times; text does 2 to 6 times", ratio)
	}
}

func TestAFilledTiersRecordIsDueWhenItIsSaid(t *testing.T) {
	now := time.Now()
	n := names{Prefix: "b1", Delays: hopInput.delays}
	m := deadletter.Message{Place: deadletter.Place{Topic: n.tier(hop)}, Timestamp: now.UnixMilli(), Value: value(1, now)}
	for _, h := range headers(n, 1, now, now.Add(time.Second)) {
		m.Headers = append(m.Headers, deadletter.Header{Key: h.Key, Value: h.Value})
	}
	r, err := deadletter.Read(m, deadletter.ReadOptions{Kind: deadletter.Tier, Delay: time.Second, MaxWait: time.Hour, Now: now, ClusterID: "c"})
	if err != nil || len(r.Notes) > 0 {
		t.Fatalf("read as %v, with repairs %v", err, r.Notes)
	}
	if r.NotBefore != now.Add(time.Second).UnixMilli() || r.Attempt != 1 {
		t.Errorf("not before %d, attempt %d", r.NotBefore, r.Attempt)
	}
}

func TestOnlyTheCounterThatIsAskedForIsRead(t *testing.T) {
	c := &counter{name: "wanted_total"}
	wanted := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "wanted_total", Help: "not unwanted_total"}, []string{"tier"})
	other := prometheus.NewCounter(prometheus.CounterOpts{Name: "unwanted_total", Help: "wanted_total"})
	for _, x := range []prometheus.Collector{prometheus.NewCounter(prometheus.CounterOpts{Name: "x_total"}), wanted, other} {
		if err := c.Register(x); err != nil {
			t.Fatal(err)
		}
	}
	other.Add(100)
	wanted.WithLabelValues("1s").Add(3)
	wanted.WithLabelValues("10m").Add(4)
	if n, err := c.value(); n != 7 || err != nil {
		t.Errorf("value %d, %v, want 7", n, err)
	}
}

func TestThousandsAreSetApart(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 20_000: "20,000", 1_000_000: "1,000,000"} {
		if got := thousands(n); got != want {
			t.Errorf("%d is written %s", n, got)
		}
	}
}
