package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/recon-dlq/recon-dlq/test/brokers"
)

// cluster is a broker with a configuration file that names topics of this test's own.
type cluster struct {
	names brokers.Names
	file  string
}

func newCluster(t *testing.T, addrs ...string) cluster {
	t.Helper()
	n := brokers.NewNames(nil)
	file := filepath.Join(t.TempDir(), "recon-dlq.yaml")
	text := fmt.Sprintf(`
kafka: {brokers: [%q], group: %s}
source: {topics: [%s, %s]}
topics: {retry: %s, hold: %s, poison: %s, audit: %s, state: %s, replication: 1}
targets: [{name: ledger, http: {url: "http://127.0.0.1:1/"}}]
rules: [{name: default, target: ledger, attempts: 3, delays: [1s, 2s]}]
`, strings.Join(addrs, `", "`), n.Group, n.Source, n.Source+".second", n.Retry, n.Hold, n.Poison, n.Audit, n.State)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return cluster{names: n, file: file}
}

// run runs one command line with the cluster's configuration.
func (c cluster) run(ctx context.Context, stdin io.Reader, args ...string) (code int, stdout, stderr string) {
	var out, err lockedBuffer
	code = Main(ctx, append(args, "--config", c.file), stdin, &out, &err, nil)
	return code, out.String(), err.String()
}

// lockedBuffer may be written by the Kafka client's logger at the same time as by the command.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func decode[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	return v
}
