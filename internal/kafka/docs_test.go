package kafka_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/recon-dlq/recon-dlq/test/brokers"
)

// documentedGrants are the commands of docs/topics.md, with the names of l and
// the worker and the classifier as the one user that the cluster does not know.
func documentedGrants(t *testing.T, n brokers.Names, user string) []*kadm.ACLBuilder {
	t.Helper()
	text, err := os.ReadFile("../../docs/topics.md")
	if err != nil {
		t.Fatal(err)
	}
	operations := map[string]kadm.ACLOperation{"READ": kadm.OpRead, "WRITE": kadm.OpWrite, "DESCRIBE_CONFIGS": kadm.OpDescribeConfigs}
	names := strings.NewReplacer("recon.dlq", n.Source, "recon-dlq", n.Group)
	var grants []*kadm.ACLBuilder
	for line := range strings.Lines(string(text)) {
		args, ok := strings.CutPrefix(line, "acls User:"+user+" ")
		if !ok {
			continue
		}
		acl := kadm.NewACLs().Allow("User:ANONYMOUS").AllowHosts().ResourcePatternType(kadm.ACLPatternLiteral)
		var ops []kadm.ACLOperation
		for words := strings.Fields(args); len(words) > 0; words = words[1:] {
			switch flag := words[0]; flag {
			case "--cluster":
				acl.Clusters()
				continue
			case "--operation":
				ops = append(ops, operations[words[1]])
			case "--topic":
				acl.Topics(names.Replace(words[1]))
			case "--group":
				acl.Groups(names.Replace(words[1]))
			case "--transactional-id":
				acl.TransactionalIDs(names.Replace(words[1]))
			case "--resource-pattern-type":
				acl.ResourcePatternType(kadm.ACLPatternPrefixed)
			default:
				t.Fatalf("docs/topics.md: unknown flag %s", flag)
			}
			words = words[1:]
		}
		grants = append(grants, acl.Operations(ops...))
	}
	return grants
}

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
