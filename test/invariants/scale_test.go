package invariants_test

import (
	"fmt"
	"testing"

	"github.com/recon-dlq/recon-dlq/test/brokers"
)

// BenchmarkCheck measures a chaos run's size: per life a source record, one
// retry copy and three events; every hundredth goes to poison.
func BenchmarkCheck(b *testing.B) {
	broker := brokers.NewKfake(b)
	s := newScript(b, broker)
	const records = 100_000
	for i := range records {
		rec := s.retry(s.arrive(fmt.Sprint("record-", i), int32(i%partitions)))
		if i%100 == 0 {
			s.poison(rec)
		} else {
			s.resolve(rec)
		}
	}
	s.write(b, broker)
	spec := s.spec()
	spec.Escalated = false
	b.ReportAllocs()
	for b.Loop() {
		report := check(b, broker, spec)
		if err := report.Err(); err != nil || report.Records != records {
			b.Fatal(report, err)
		}
	}
	b.ReportMetric(records, "records/op")
}
