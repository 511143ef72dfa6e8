package brokers

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

func TestCommittedRecordsAreReadAndAbortedOnesAreNot(t *testing.T) {
	Each(t, func(t *testing.T, b Broker) {
		names := Topics(t, b, 2, nil, nil)
		cl := Client(t, append(b.Opts(), kgo.TransactionalID(names.Prefix), kgo.DefaultProduceTopic(names.Source))...)
		write(t, cl, "one", kgo.TryCommit)
		write(t, cl, "aborted", kgo.TryAbort)
		write(t, cl, "two", kgo.TryCommit)
		write(t, cl, "aborted at the end", kgo.TryAbort)

		records, err := ReadAll(t.Context(), b, names.Source)
		if err != nil {
			t.Fatal(err)
		}
		if got := values(records); len(got) != 2 || !got["one"] || !got["two"] {
			t.Fatalf("read %v, want one and two", got)
		}
	})
}

func TestReadingStopsAtAnOpenTransactionAndDoesNotHang(t *testing.T) {
	Each(t, func(t *testing.T, b Broker) {
		names := Topics(t, b, 1, nil, nil)
		Produce(t, b, &kgo.Record{Topic: names.Source, Value: []byte("before")})
		cl := Client(t, append(b.Opts(), kgo.TransactionalID(names.Prefix), kgo.DefaultProduceTopic(names.Source))...)
		if err := cl.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		if err := cl.ProduceSync(t.Context(), &kgo.Record{Value: []byte("open")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		Produce(t, b, &kgo.Record{Topic: names.Source, Value: []byte("behind")})

		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		records, err := ReadAll(ctx, b, names.Source)
		if err != nil {
			t.Fatal(err)
		}
		if got := values(records); len(got) != 1 || !got["before"] {
			t.Fatalf("read %v, want only what is before the open transaction", got)
		}
		if err := cl.EndTransaction(ctx, kgo.TryCommit); err != nil {
			t.Fatal(err)
		}
	})
}

func TestTopicsAreMadeAsTheWorkerWantsThem(t *testing.T) {
	Each(t, func(t *testing.T, b Broker) {
		names := Topics(t, b, 3, []time.Duration{90 * time.Second, time.Hour}, map[string]string{"max.message.bytes": "2000000"})
		if got, want := names.Tiers(), []string{names.Retry + "90s", names.Retry + "1h"}; got[0] != want[0] || got[1] != want[1] {
			t.Errorf("tiers are %v, want %v", got, want)
		}
		adm := kadm.NewClient(Client(t, b.Opts()...))
		configs, err := adm.DescribeTopicConfigs(t.Context(), names.All()...)
		if err != nil {
			t.Fatal(err)
		}
		for topic, want := range map[string][2]string{
			names.Source:           {"max.message.bytes", "2000000"},
			names.Tier(time.Hour):  {"max.message.bytes", "2000000"},
			names.Audit:            {"message.timestamp.type", "LogAppendTime"},
			names.State:            {"cleanup.policy", "compact"},
			names.Retry + "90s":    {"retention.ms", "-1"},
			names.Prefix + ".none": {},
		} {
			config, err := configs.On(topic, nil)
			if want[0] == "" {
				if err == nil {
					t.Errorf("topic %s exists", topic)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			found := ""
			for _, c := range config.Configs {
				if c.Key == want[0] {
					found = c.MaybeValue()
				}
			}
			if found != want[1] {
				t.Errorf("%s of %s is %q, want %q", want[0], topic, found, want[1])
			}
		}
	})
}

func TestAKilledNodeComesBackWithItsData(t *testing.T) {
	k := NewKafka(t, Options{TransactionVersion: 1, Properties: map[string]string{
		"offset.metadata.max.bytes": "1000",
		// How long the controller still counts on the killed broker.
		"broker.session.timeout.ms": "4000", "broker.heartbeat.interval.ms": "500",
	}})
	names := Topics(t, k, 1, nil, nil)
	Produce(t, k, &kgo.Record{Topic: names.Source, Value: []byte("kept")})
	k.Kill(1)
	if err := k.Start(1); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), bootTimeout)
	defer cancel()
	if err := k.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	records, err := ReadAll(ctx, k, names.Source)
	if err != nil || len(records) != 1 {
		t.Fatalf("read %d records (%v) after the restart, want 1", len(records), err)
	}

	adm := kadm.NewClient(Client(t, k.Opts()...))
	offsets := make(kadm.Offsets)
	offsets.Add(kadm.Offset{Topic: names.Source, At: 1, LeaderEpoch: -1, Metadata: string(make([]byte, 1001))})
	if err := adm.CommitAllOffsets(ctx, names.Group, offsets); !errors.Is(err, kerr.OffsetMetadataTooLarge) {
		t.Errorf("metadata above the configured limit: %v, want OFFSET_METADATA_TOO_LARGE", err)
	}
	features, err := adm.ApiVersions(ctx)
	if err != nil {
		t.Fatal(err)
	}
	features.Each(func(v kadm.BrokerApiVersions) {
		for _, f := range v.Raw().FinalizedFeatures {
			if f.Name == "transaction.version" && f.MaxVersionLevel != 1 {
				t.Errorf("transaction.version is %d, want 1", f.MaxVersionLevel)
			}
		}
	})
}

func TestWithAnAuthorizerAClientMayDoOnlyWhatAnACLAllows(t *testing.T) {
	k := NewKafka(t, Options{Authorizer: true})
	names := Topics(t, k, 1, nil, nil)
	cl := Client(t, append(k.Opts(), kgo.DefaultProduceTopic(names.Source), kgo.UnknownTopicRetries(0))...)
	if err := cl.ProduceSync(t.Context(), kgo.StringRecord("refused")).FirstErr(); !errors.Is(err, kerr.TopicAuthorizationFailed) {
		t.Fatalf("produce without a right: %v, want TOPIC_AUTHORIZATION_FAILED", err)
	}
	acl := kadm.NewACLs().Allow("User:ANONYMOUS").AllowHosts("*").Topics(names.Source).
		Operations(kmsg.ACLOperationWrite).ResourcePatternType(kmsg.ACLResourcePatternTypeLiteral)
	made, err := kadm.NewClient(Client(t, k.AdminOpts()...)).CreateACLs(t.Context(), acl)
	if err != nil || made[0].Err != nil {
		t.Fatalf("create the ACL: %v, %v", err, made)
	}
	fresh := Client(t, append(k.Opts(), kgo.DefaultProduceTopic(names.Source))...)
	if err := fresh.ProduceSync(t.Context(), kgo.StringRecord("allowed")).FirstErr(); err != nil {
		t.Fatalf("produce with the right: %v", err)
	}
}

func TestThreeNodesReplicate(t *testing.T) {
	k := NewKafka(t, Options{Nodes: 3})
	names := Topics(t, k, 2, nil, nil)
	k.Kill(2)
	Produce(t, k, &kgo.Record{Topic: names.Source, Value: []byte("acknowledged by two")})
	records, err := ReadAll(t.Context(), k, names.Source)
	if err != nil || len(records) != 1 {
		t.Fatalf("read %d records (%v) with one node down, want 1", len(records), err)
	}
}

func write(t *testing.T, cl *kgo.Client, value string, end kgo.TransactionEndTry) {
	t.Helper()
	if err := cl.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := cl.ProduceSync(t.Context(), kgo.StringRecord(value)).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if err := cl.EndTransaction(t.Context(), end); err != nil {
		t.Fatal(err)
	}
}

func values(records []*kgo.Record) map[string]bool {
	got := make(map[string]bool)
	for _, r := range records {
		got[string(r.Value)] = true
	}
	return got
}
