// Package foreign has dead letters of other systems, as their own libraries wrote
// them to Apache Kafka. The records in testdata were taken from a broker by
//
//	go run ./test/foreign/capture
//
// which says what it needs. Tests read the records only.
package foreign

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

// Capture is what one system wrote, in the order of topic, partition and offset.
type Capture struct {
	Software []string `json:"software"` // what wrote it, name and version
	Records  []Record `json:"records"`
}

// Record is one dead letter. Null and empty bytes are told apart.
type Record struct {
	Topic     string   `json:"topic"`
	Partition int32    `json:"partition"`
	Offset    int64    `json:"offset"`
	Timestamp int64    `json:"timestamp"` // ms since epoch
	Key       []byte   `json:"key"`
	Value     []byte   `json:"value"`
	Headers   []Header `json:"headers"`
}

// Header is one header of a record.
type Header struct {
	Key   string `json:"key"`
	Value []byte `json:"value"`
}

// Load reads a capture.
func Load(path string) (Capture, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return Capture{}, err
	}
	var c Capture
	if err := json.Unmarshal(raw, &c); err != nil {
		return Capture{}, fmt.Errorf("read %s: %w", path, err)
	}
	return c, nil
}

// Message is the record as a worker reads it.
func (r Record) Message() deadletter.Message {
	m := deadletter.Message{
		Place:     deadletter.Place{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset},
		Timestamp: r.Timestamp, Key: r.Key, Value: r.Value,
	}
	for _, h := range r.Headers {
		m.Headers = append(m.Headers, deadletter.Header(h))
	}
	return m
}
