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
