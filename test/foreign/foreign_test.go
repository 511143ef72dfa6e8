package foreign

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

// written is the timestamp of all records before they were dead letters, ms since epoch.
const written = 1764547200000

// captured names the fixtures, and for each record, by topic and offset, what its
// headers say, less the times of the run.
var captured = map[string]map[string]string{
	"spring-4.1.2":  springFacts("payments-retry/0", "payments-retry/1"),
	"spring-3.3.16": springFacts("payments-retry-0/0", "payments-retry-1/0"),
	"connect-" + brokers.KafkaVersion: {
		"connect-dlq/0": connectFacts("0", "VALUE_CONVERTER", "org.apache.kafka.connect.json.JsonConverter",
			"Converting byte[] to Kafka Connect data failed due to serialization error: "),
		"connect-dlq/1": connectFacts("1", "TRANSFORMATION", "org.apache.kafka.connect.transforms.TimestampConverter$Value",
			"Could not parse timestamp: value (tomorrow) does not match pattern (yyyy-MM-dd)"),
		"connect-dlq/2": connectFacts("2", "TASK_PUT", "org.apache.kafka.connect.sink.SinkTask", "the ledger is closed for that day"),
	},
	"streams-" + brokers.KafkaVersion: {
		"streams-dlq/0": `streams exception_class org.apache.kafka.common.errors.SerializationException
streams message Size of data received by IntegerDeserializer is not 4
streams original_topic balances
streams original_partition 0
streams original_offset 0`,
		"streams-dlq/1": `streams exception_class java.lang.ArithmeticException
streams message / by zero
streams original_topic balances
streams original_partition 0
streams original_offset 1`,
	},
	"share-" + brokers.KafkaVersion: {
		"dlq.headers/0": shareFacts("headers-app", "0", "1", "Offset rejected by client."),
		"dlq.headers/1": shareFacts("headers-app", "1", "2", "Offset delivery count exceeded the threshold."),
		"dlq.copies/0":  shareFacts("copies-app", "0", "1", "Offset rejected by client."),
		"dlq.copies/1":  shareFacts("copies-app", "1", "2", "Offset delivery count exceeded the threshold."),
	},
	"watermill-1.5.1": {
		"watermill-poison/0": `watermill handler transfer
watermill message the other account is closed
watermill original_topic transfers
watermill subscriber kafka.Subscriber`,
	},
}

func springFacts(retry1, retry2 string) map[string]string {
	const deserialize = "org.springframework.kafka.support.serializer.DeserializationException"
	failed := func(cause, message string) string {
		return "spring exception_class org.springframework.kafka.listener.ListenerExecutionFailedException\n" +
			"spring cause_class java.lang." + cause + "\nspring message " + message + "\n"
	}
	original := func(topic, offset, group string) string {
		return "spring original_topic " + topic + "\nspring original_partition 0\nspring original_offset " + offset +
			"\nspring original_timestamp 1764547200000\nspring original_timestamp_type CreateTime\nspring original_group " + group
	}
	// A retry topic says the time once more, see TestHeadersOfOtherSystemsBecomeFacts for its form.
	payment := func(attempts string) string {
		return original("payments", "0", "payments-app") + "\nspring original_timestamp 1764547200000\nspring attempts " + attempts + "\n" +
			failed("IllegalStateException", "Listener failed; payment refused for käse & co")
	}
	return map[string]string{
		"orders-dlt/0": "spring delivery_attempt 2\n" +
			failed("IllegalStateException", "Listener method 'void Spring.order(java.lang.String)' threw exception; no such account") +
			original("orders", "0", "orders-app"),
		"orders-dlt-dlt/0": "spring delivery_attempt 2\n" + original("orders", "0", "orders-app") + "\n" +
			failed("IllegalArgumentException", "Listener method 'void Spring.orderAgain(java.lang.String)' threw exception; still no such account"),
		"invoices-dlt/0": "spring exception_class " + deserialize + "\nspring cause_class " + deserialize + "\nspring message failed to deserialize\n" +
			original("invoices", "0", "invoices-app"),
		"invoices-dlt/1": "spring key_exception_class " + deserialize + "\nspring cause_class " + deserialize + "\nspring key_message failed to deserialize\n" +
			original("invoices", "1", "invoices-app"),
		"payments-dlt/0": payment("4"),
		retry1:           payment("2"),
		retry2:           payment("3"),
	}
}

func connectFacts(offset, stage, class, message string) string {
	return "connect original_topic ledger\nconnect original_partition 0\nconnect original_offset " + offset +
		"\nconnect connector ledger-sink\nconnect task 0\nconnect stage " + stage + "\nconnect executing_class " + class +
		"\nconnect exception_class org.apache.kafka.connect.errors.DataException\nconnect message " + message
}

func shareFacts(group, offset, attempts, message string) string {
	return "share_group original_topic jobs\nshare_group original_partition 0\nshare_group original_offset " + offset +
		"\nshare_group original_group " + group + "\nshare_group attempts " + attempts + "\nshare_group message " + message
}

// sorted makes texts comparable: Watermill's headers are in no order, and
// Spring's retry topics put theirs in another one with each hop.
func sorted(lines string) string {
	return strings.Join(slices.Sorted(strings.SplitSeq(strings.TrimSuffix(lines, "\n"), "\n")), "\n")
}

func eachRecord(t *testing.T, fn func(t *testing.T, r Record, want string)) {
	for name, want := range captured {
		t.Run(name, func(t *testing.T) {
			c, err := Load("testdata/" + name + ".json")
			if err != nil {
				t.Fatal(err)
			}
			left := maps.Clone(want)
			for _, r := range c.Records {
				at := fmt.Sprintf("%s/%d", r.Topic, r.Offset)
				t.Run(strings.ReplaceAll(at, "/", " at "), func(t *testing.T) { fn(t, r, want[at]) })
				delete(left, at)
			}
			if len(left) > 0 {
				t.Errorf("not captured: %q", slices.Sorted(maps.Keys(left)))
			}
		})
	}
}

func TestDeadLettersOfRealLibrariesAreDecoded(t *testing.T) {
	eachRecord(t, func(t *testing.T, r Record, want string) {
		var got strings.Builder
		for _, f := range deadletter.Facts(r.Message().Headers) {
			if f.Problem != "" {
				t.Errorf("%s: %s", f.Header, f.Problem)
			}
			if f.Name == "backoff_timestamp" {
				ms, _ := strconv.ParseInt(f.Value, 10, 64)
				if d := time.Duration(ms-r.Timestamp) * time.Millisecond; d.Abs() > time.Minute {
					t.Errorf("%s is %s, %s after the record", f.Header, f.Value, d)
				}
				continue
			}
			fmt.Fprintf(&got, "%s %s %s\n", f.System, f.Name, f.Value)
		}
		if got, want := sorted(got.String()), sorted(want); got != want {
			t.Errorf("facts are\n%s\n\nwant\n%s", got, want)
		}
	})
}

// What a new version writes beside what is known shows here when it is captured.
func TestNoHeaderOfARealLibraryIsLeftOut(t *testing.T) {
	others := []string{"traceparent", "tenant", "_watermill_message_uuid"} // not about the failure
	eachRecord(t, func(t *testing.T, r Record, _ string) {
		facts := deadletter.Facts(r.Message().Headers)
		for _, h := range r.Headers {
			known := slices.ContainsFunc(facts, func(f deadletter.Fact) bool { return f.Header == h.Key })
			if !known && !strings.HasSuffix(h.Key, "stacktrace") && !slices.Contains(others, h.Key) {
				t.Errorf("%s is no fact", h.Key)
			}
		}
	})
}

func TestDeadLettersOfRealLibrariesAreRawRecords(t *testing.T) {
	eachRecord(t, func(t *testing.T, r Record, _ string) {
		m := r.Message()
		got, err := deadletter.Read(m, deadletter.ReadOptions{
			Kind: deadletter.Source, Raw: true, Now: time.UnixMilli(r.Timestamp).Add(time.Minute), ClusterID: "c",
		})
		if err != nil {
			t.Fatal(err)
		}
		if got.ID != deadletter.Identity("c", m.Place) || got.Attempt != 0 || len(got.Foreign) != len(r.Headers) || len(got.Notes) != 0 {
			t.Errorf("read as %+v", got)
		}
		if (got.Value == nil) != (r.Value == nil) || !bytes.Equal(got.Value, r.Value) {
			t.Errorf("the value is %q, want %q", got.Value, r.Value)
		}
		want := r.Timestamp // Connect and Streams keep that of the original
		if strings.Contains(r.Topic, "-dlt") || strings.Contains(r.Topic, "-retry") {
			want = written
		}
		if got.Enqueued != want {
			t.Errorf("enqueued %d, want %d", got.Enqueued, want)
		}
	})
}
