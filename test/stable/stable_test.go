package stable_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/test/brokers"
	"github.com/recon-dlq/recon-dlq/test/stable"
)

func TestWaitNamesThePartitionThatAnOpenTransactionBlocks(t *testing.T) {
	b := brokers.NewKfake(t)
	names := brokers.Topics(t, b, 1, nil, nil)
	cl := brokers.Client(t, append(b.Opts(), kgo.TransactionalID(names.Prefix), kgo.DefaultProduceTopic(names.Audit))...)
	if err := cl.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := cl.ProduceSync(t.Context(), kgo.StringRecord("open")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := stable.Wait(short, cl, names.All()...); err == nil || !strings.Contains(err.Error(), names.Audit+"/0") {
		t.Fatalf("wait with an open transaction: %v, want an error that names %s/0", err, names.Audit)
	}
	waited := make(chan error, 1)
	go func() { waited <- stable.Wait(t.Context(), cl, names.All()...) }()
	if err := cl.EndTransaction(t.Context(), kgo.TryCommit); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; err != nil {
		t.Fatal(err)
	}
}

func TestEveryPartitionIsReadInOrderWhoeverLeadsIt(t *testing.T) {
	b := brokers.NewKfake(t, kfake.NumBrokers(3))
	names := brokers.Topics(t, b, 6, nil, nil)
	const records = 3000
	var written []*kgo.Record
	for i := range records {
		written = append(written, &kgo.Record{Topic: names.Source, Key: fmt.Append(nil, i%100), Value: fmt.Append(nil, i)})
	}
	brokers.Produce(t, b, written...)
	cl := brokers.Client(t, b.Opts()...)
	bounds, err := stable.List(t.Context(), cl, names.Source)
	if err != nil {
		t.Fatal(err)
	}
	brokers.Produce(t, b, &kgo.Record{Topic: names.Source, Value: []byte("later than the bounds")})
	next := make(map[int32]int64)
	moved := false
	err = stable.Read(t.Context(), cl, bounds, func(r *kgo.Record) {
		if r.Offset != next[r.Partition] {
			t.Errorf("partition %d: read offset %d, want %d", r.Partition, r.Offset, next[r.Partition])
		}
		next[r.Partition]++
		if !moved { // leaders change while we read
			moved = true
			b.Cluster.ShufflePartitionLeaders()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	total := int64(0)
	for _, n := range next {
		total += n
	}
	if total != records {
		t.Errorf("read %d records, want the %d within the bounds", total, records)
	}
}

func TestATopicThatDoesNotExistIsAnError(t *testing.T) {
	b := brokers.NewKfake(t)
	if _, err := stable.List(t.Context(), brokers.Client(t, b.Opts()...), "none"); err == nil {
		t.Error("a topic that does not exist has bounds")
	}
}
