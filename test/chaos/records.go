package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// partitions of every topic but state.
const partitions = 6

// fate is what the target makes of a record.
type fate int

const (
	resolves  fate = iota
	failsOnce      // HTTP 500 on the first call
	permanent      // HTTP 422
)

// fateOf says what becomes of record n: one in a hundred fails for ever, a third
// of the others once. Records go to the partitions in turn. Of every three that
// follow each other in one, a random one fails: five failures in a row would
// look like an outage, which is another story, and a strict rhythm can meet the
// rhythm of probes.
func fateOf(n int) fate {
	if n%100 == 42 {
		return permanent
	}
	position, partition := n/partitions, n%partitions
	random := rand.New(rand.NewPCG(uint64(position/3), uint64(partition)))
	if position%3 == random.IntN(3) {
		return failsOnce
	}
	return resolves
}

// expected is what must become of the records. The last is an upper bound: a
// failure is not counted, and so not retried, when its worker was killed before
// it was committed or when the target was thought down.
type expected struct{ resolved, poisoned, retried int }

func expect(records int) (e expected) {
	for n := range records {
		switch fateOf(n) {
		case permanent:
			e.poisoned++
			continue
		case failsOnce:
			e.retried++
		case resolves:
		}
		e.resolved++
	}
	return e
}

const idFormat = "d-%08d"

// Shapes of a record's value.
type (
	discrepancy struct {
		ID       string  `json:"discrepancy_id"`
		Category string  `json:"category"`
		Context  sides   `json:"context"`
		Verdict  verdict `json:"verdict"`
		Enqueued int64   `json:"enqueued_ms"`
	}
	sides struct {
		Run    string `json:"run"`
		Source entry  `json:"source"`
		Target *entry `json:"target,omitempty"`
	}
	entry struct {
		ID       string `json:"id"`
		Account  string `json:"account"`
		Amount   int64  `json:"amount_minor"`
		Currency string `json:"currency"`
		Version  int    `json:"version"`
	}
	verdict struct {
		Finding    string  `json:"finding"`
		Confidence float64 `json:"confidence"`
	}
)

// recordOf makes source record n, about 300 bytes.
func recordOf(n int, now time.Time) (*kgo.Record, error) {
	source := entry{
		ID: fmt.Sprintf("e-%08d", n), Account: fmt.Sprintf("merchant-%03d", n%997),
		Amount: int64(n)*7919%5_000_000 + 1, Currency: [...]string{"EUR", "USD", "GBP", "JPY"}[n/7%4], Version: n%9 + 2,
	}
	d := discrepancy{
		ID: fmt.Sprintf(idFormat, n), Enqueued: now.UnixMilli(),
		Context: sides{Run: now.UTC().Format("run-2006-01-02"), Source: source},
	}
	switch n % 5 {
	case 0: // its rule has the longer delay
		d.Category, d.Verdict = "missing_in_target", verdict{"never_booked", 0.93}
	case 1:
		d.Category, d.Verdict = "stale_version", verdict{"update_lost", 0.81}
		stale := source
		stale.Version--
		d.Context.Target = &stale
	default:
		d.Category, d.Verdict = "amount_differs", verdict{"rounding", 0.87}
		differs := source
		differs.Amount += int64(n%3) + 1
		d.Context.Target = &differs
	}
	value, err := json.Marshal(d)
	if err != nil {
		return nil, err
	}
	r := &kgo.Record{
		Topic: sourceTopic, Partition: int32(n % partitions), Key: []byte(d.ID), Value: value,
		Headers: []kgo.RecordHeader{{Key: "traceparent", Value: fmt.Appendf(nil, "00-%032x-%016x-01", n, n)}},
	}
	if n%50 == 0 {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: "replayed-from"}) // null: a copy must keep it so
	}
	return r, nil
}

// produce writes the source records, paced if there is a rate.
func produce(ctx context.Context, opts []kgo.Opt, o options) error {
	cl, err := kgo.NewClient(append(opts, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(5*time.Millisecond))...)
	if err != nil {
		return fmt.Errorf("make a producer: %w", err)
	}
	defer cl.Close()
	start := time.Now()
	for from := 0; from < o.records; {
		now := time.Now()
		to := min(from+500, o.records)
		if o.rate > 0 {
			// By the start and not by the last write: what an outage holds up is made up for.
			due := int(now.Sub(start).Seconds() * float64(o.rate))
			if to = min(to, due); to < min(from+1+o.rate/20, o.records) {
				if err := rest(ctx, 50*time.Millisecond); err != nil {
					return err
				}
				continue
			}
		}
		records := make([]*kgo.Record, 0, to-from)
		for ; from < to; from++ {
			r, err := recordOf(from, now)
			if err != nil {
				return fmt.Errorf("make a source record: %w", err)
			}
			records = append(records, r)
		}
		if err := cl.ProduceSync(ctx, records...).FirstErr(); err != nil {
			return fmt.Errorf("produce source records: %w", err)
		}
	}
	return nil
}
