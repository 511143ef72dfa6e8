package kafka_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

func TestTheDocumentedRightsAreTheOnesThatAreChecked(t *testing.T) {
	text, err := os.ReadFile("../../docs/topics.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(text)
	for _, row := range []string{
		"| worker | topic: source | READ |",
		"| worker | topic: tier, hold | READ, WRITE |",
		"| worker | topic: poison | READ, WRITE |",
		"| worker | topic: audit | WRITE |",
	} {
		if !strings.Contains(doc, row) {
			t.Errorf("docs/topics.md has no row %q", row)
		}
	}
	// Every setting that is planned is explained.
	for _, topic := range layout().Topics() {
		if !strings.Contains(doc, fmt.Sprintf("| %s: `", topic.Role)) {
			t.Errorf("docs/topics.md has no row for %s", topic.Role)
		}
		for _, s := range topic.Config {
			if !strings.Contains(doc, s.Key) {
				t.Errorf("docs/topics.md does not name %s", s.Key)
			}
		}
	}
}
