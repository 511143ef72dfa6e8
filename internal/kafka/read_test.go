package kafka_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/internal/kafka"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

func TestOneRecordIsReadWhereItLiesAndWhatIsNotThereSaysWhy(t *testing.T) {
	brokers.Each(t, func(t *testing.T, b brokers.Broker) {
		topic := brokers.NewNames(nil).Source
		cl := brokers.Client(t, append(b.Opts(), kgo.TransactionalID("read-at"), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
		adm := kadm.NewClient(cl)
		if _, err := adm.CreateTopic(t.Context(), 2, 1, nil, topic); err != nil {
			t.Fatal(err)
		}
		// 0 1 committed, 2 its marker; 3 aborted, 4 its marker; 5 committed, 6 its marker; 7 open.
		send := func(values ...string) {
			t.Helper()
			if err := cl.BeginTransaction(); err != nil {
				t.Fatal(err)
			}
			for _, v := range values {
				r := &kgo.Record{Topic: topic, Key: []byte("k"), Value: []byte(v), Headers: []kgo.RecordHeader{{Key: "h", Value: []byte(v)}}}
				if err := cl.ProduceSync(t.Context(), r).FirstErr(); err != nil {
					t.Fatal(err)
				}
			}
		}
		end := func(commit kgo.TransactionEndTry) {
			t.Helper()
			if err := cl.EndTransaction(t.Context(), commit); err != nil {
				t.Fatal(err)
			}
		}
		send("zero", "one")
		end(kgo.TryCommit)
		send("aborted")
		end(kgo.TryAbort)
		send("five")
		end(kgo.TryCommit)
		send("open")
		defer end(kgo.TryAbort)

		read := func(partition int32, offset int64) (deadletter.Message, string, error) {
			p := deadletter.Place{Topic: topic, Partition: partition, Offset: offset}
			cl := brokers.Client(t, append(b.Opts(), kafka.ReadAtOpts(p)...)...)
			return kafka.ReadAt(t.Context(), cl, p)
		}
		for offset, want := range map[int64]string{0: "zero", 1: "one", 5: "five"} {
			m, cluster, err := read(0, offset)
			if err != nil || string(m.Value) != want || m.Place.Offset != offset || m.Place.TopicID == [16]byte{} || cluster == "" ||
				len(m.Headers) != 1 || string(m.Headers[0].Value) != want || m.Timestamp == 0 {
				t.Errorf("offset %d: %+v of cluster %q, %v", offset, m, cluster, err)
			}
		}
		missing := func(partition int32, offset int64, want string) {
			t.Helper()
			if _, _, err := read(partition, offset); !errors.Is(err, kafka.ErrNoRecord) || !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("%d/%d: %v, want %q", partition, offset, err, want)
			}
		}
		missing(0, 2, "marker of a transaction")
		missing(0, 3, "aborted")
		missing(0, 7, "what is committed ends before 7")
		missing(0, 99, "what is committed ends before 7")
		missing(1, 0, "what is committed ends before 0")
		missing(2, 0, "the topic has 2 partitions")

		var gone kadm.Offsets
		gone.Add(kadm.Offset{Topic: topic, Partition: 0, At: 1})
		if _, err := adm.DeleteRecords(t.Context(), gone); err != nil {
			t.Fatal(err)
		}
		missing(0, 0, "it is gone, the partition begins at 1")

		p := deadletter.Place{Topic: topic + ".absent"}
		_, _, err := kafka.ReadAt(t.Context(), brokers.Client(t, append(b.Opts(), kafka.ReadAtOpts(p)...)...), p)
		if _, ok := errors.AsType[*kafka.MissingError](err); !ok {
			t.Errorf("a topic that does not exist: %v", err)
		}
	})
}

func TestATopicsNameSaysWhatItIs(t *testing.T) {
	l := kafka.Layout{Sources: []string{"a", "b"}, RetryPrefix: "r.", HoldPrefix: "h.", Poison: "p", Audit: "x"}
	for topic, want := range map[string]string{
		"a": "0 0s", "b": "0 0s", "r.10s": "1 10s", "r.1h": "1 1h0m0s", "h.ledger": "2 0s", "p": "3 0s",
		"x": "", "c": "", "r.": "", "r.soon": "", "h.": "", "": "",
	} {
		kind, delay, ok := l.KindOf(topic)
		if got := fmt.Sprint(kind, " ", delay); ok != (want != "") || ok && got != want {
			t.Errorf("%q: %s, %v, want %q", topic, got, ok, want)
		}
	}
}
