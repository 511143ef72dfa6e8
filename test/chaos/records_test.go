package main

import (
	"testing"
	"time"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

func TestAThirdOfTheRecordsFailsOnceAndOneInAHundredForEver(t *testing.T) {
	const records = 100_000
	e := expect(records)
	if e.poisoned != records/100 || e.resolved != records-records/100 {
		t.Errorf("%d resolved and %d poisoned, want 99 and 1 of a hundred", e.resolved, e.poisoned)
	}
	if third := (records - e.poisoned) / 3; e.retried < third*98/100 || e.retried > third*102/100 {
		t.Errorf("%d fail once, want about %d", e.retried, third)
	}
	row := [partitions]int{}
	for n := range records {
		if p := n % partitions; fateOf(n) == failsOnce {
			if row[p]++; row[p] > 2 {
				t.Fatalf("record %d is failure number %d in a row of partition %d, want at most 2", n, row[p], p)
			}
		} else {
			row[p] = 0
		}
	}
}

func TestSourceRecordsAreWellFormed(t *testing.T) {
	now := time.UnixMilli(1_790_000_000_000)
	for n := range 100 {
		r, err := recordOf(n, now)
		if err != nil {
			t.Fatal(err)
		}
		m := deadletter.Message{
			Place:     deadletter.Place{Topic: r.Topic, Partition: r.Partition, Offset: int64(n)},
			Timestamp: now.UnixMilli(), Key: r.Key, Value: r.Value,
		}
		got, err := deadletter.Read(m, deadletter.ReadOptions{Kind: deadletter.Source, Now: now, ClusterID: "c"})
		if err != nil {
			t.Fatalf("record %d: %v", n, err)
		}
		if got.DiscrepancyID != string(r.Key) {
			t.Errorf("record %d is read as %q, want %q", n, got.DiscrepancyID, r.Key)
		}
		if size := len(r.Value); size < 200 || size > 500 {
			t.Errorf("the value of record %d has %d bytes, want about 300", n, size)
		}
	}
}
