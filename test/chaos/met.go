package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"regexp"

	"github.com/twmb/franz-go/pkg/kerr"
)

var capitals = regexp.MustCompile(`\b[A-Z]+(?:_[A-Z]+)+\b`)

// kafkaErrors are the names of all error codes of the protocol.
var kafkaErrors = func() map[string]bool {
	names := make(map[string]bool)
	for code := int16(-1); code < 512; code++ {
		if e, ok := errors.AsType[*kerr.Error](kerr.ErrorForCode(code)); ok {
			names[e.Message] = true
		}
	}
	return names
}()

// errorsMet counts the lines of a worker's log that name an error code of Kafka, by name.
func errorsMet(log string, met map[string]int) error {
	file, err := os.Open(log)
	if err != nil {
		return fmt.Errorf("look for error codes: %w", err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		seen := make(map[string]bool)
		for _, name := range capitals.FindAllString(lines.Text(), -1) {
			if kafkaErrors[name] && !seen[name] {
				seen[name] = true
				met[name]++
			}
		}
	}
	return lines.Err()
}
