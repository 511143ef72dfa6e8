package main

import (
	"os"
	"testing"
	"time"

	"github.com/recon-dlq/recon-dlq/config"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		os.Exit(targetMain())
	}
	os.Exit(m.Run())
}

func TestNothingIsLostOrDoubledWhenWorkersAreKilled(t *testing.T) {
	kafka := brokers.NewKafka(t, brokers.Options{})
	r := run(t.Context(), kafka, options{
		records: 3000, kills: 2, workers: 2, nodes: 1, static: true, delivery: config.ExactlyOnce,
		seed: 1, stall: 30 * time.Second, disk: 1 << 30,
	}, t.Output())
	if err := r.print(t.Output(), "text"); err != nil {
		t.Error(err)
	}
	for _, f := range r.Faults {
		t.Error(f)
	}
	if r.Struck[killed.name] != 2 {
		t.Errorf("%d kills, want 2", r.Struck[killed.name])
	}
}

func TestNothingIsLostOrDoubledWhenWorkersAreHurtInEveryWay(t *testing.T) {
	o := options{
		records: 12 * 300, rate: 300, length: 12 * time.Second, every: 1200 * time.Millisecond, workers: 2, nodes: 1, static: true,
		delivery: config.ExactlyOnce, seed: 148, stall: 30 * time.Second, disk: 1 << 30,
	}
	// The seed has six kinds of faults and none that takes long; how many are begun
	// in the time depends on the machine.
	r := run(t.Context(), brokers.NewKafka(t, o.cluster()), o, t.Output())
	if err := r.print(t.Output(), "text"); err != nil {
		t.Error(err)
	}
	for _, f := range r.Faults {
		t.Error(f)
	}
	if len(r.Struck) < 3 {
		t.Errorf("faults of the kinds %v, want three kinds at least", r.Struck)
	}
}
