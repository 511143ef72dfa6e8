// Package brokers is the test house: the same tests on three brokers behind one
// interface. kfake is a fake broker in the process; Apache Kafka runs from its
// published jars on the machine's Java; a container runs where a Docker engine
// answers. A test package that uses the shared brokers starts with
//
//	func TestMain(m *testing.M) { os.Exit(brokers.Main(m)) }
package brokers

import (
	"errors"
	"os"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// RequireKafka is the environment variable that turns "Apache Kafka cannot run
// here" from a skipped test into a failed one. Continuous integration sets it to 1.
const RequireKafka = "REQUIRE_KAFKA"

// Broker is a running cluster.
type Broker interface {
	// Name is "kfake", "kafka" or "container".
	Name() string
	// Addrs are the bootstrap addresses, host:port.
	Addrs() []string
	// Opts are what a client needs to connect: seeds, and a dialer if the network is not a real one.
	Opts() []kgo.Opt
	Features() Features
}

// Features says what a broker can show, so that a test asks for what it needs
// instead of for a broker's name.
type Features struct {
	// RealKafka: it runs Apache Kafka's own code; what a fake does not model shows here.
	RealKafka bool
	// Transactions: transactional produce and offset commits.
	Transactions bool
	// Authorizer: requests are checked against ACLs, and clients of Opts have no rights but those given.
	Authorizer bool
	// Restart: nodes can be killed and started again on their data; see Kafka.Kill.
	Restart bool
	// Nodes is the number of brokers in the cluster.
	Nodes int
}

// ErrUnavailable says that a broker cannot run on this machine. The message
// names what is missing.
var ErrUnavailable = errors.New("not available on this machine")

// Each runs fn as one subtest per broker: on a kfake of its own, on the Apache
// Kafka and on the container that the test binary shares. With -short it runs
// on kfake only.
func Each(t *testing.T, fn func(t *testing.T, b Broker)) {
	t.Helper()
	t.Run("kfake", func(t *testing.T) { fn(t, NewKfake(t)) })
	t.Run("kafka", func(t *testing.T) { fn(t, SharedKafka(t)) })
	t.Run("container", func(t *testing.T) { fn(t, SharedContainer(t)) })
}

// Main runs the tests of a package and stops the brokers they shared. It
// returns the exit code.
func Main(m *testing.M) int {
	defer stopShared()
	return m.Run()
}

// unavailable skips the test, or fails it where Apache Kafka is required.
func unavailable(tb testing.TB, required bool, err error) {
	tb.Helper()
	if !errors.Is(err, ErrUnavailable) {
		tb.Fatal(err)
	}
	if required && os.Getenv(RequireKafka) == "1" {
		tb.Fatalf("%s=1, but %v", RequireKafka, err)
	}
	tb.Skip(err)
}
