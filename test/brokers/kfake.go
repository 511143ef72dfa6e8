package brokers

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Kfake is a fake broker in this process. It is not durable.
type Kfake struct {
	Cluster *kfake.Cluster // for faults, controls and looking inside
	opts    []kgo.Opt
	nodes   int
}

// NewKfake starts a fake broker with one node on loopback. It is closed at the
// end of the test.
func NewKfake(tb testing.TB, opts ...kfake.Opt) *Kfake {
	tb.Helper()
	return startKfake(tb, nil, opts)
}

// NewVirtualKfake starts a fake broker on an in-memory network, for tests in a
// testing/synctest bubble: start it inside the bubble. Ports are fixed, as no
// other network can see them.
func NewVirtualKfake(tb testing.TB, opts ...kfake.Opt) *Kfake {
	tb.Helper()
	network := new(kfake.VirtualNetwork)
	fixed := []kfake.Opt{kfake.Ports(9092), kfake.ListenFn(network.Listen)}
	return startKfake(tb, []kgo.Opt{kgo.Dialer(network.DialContext)}, append(fixed, opts...))
}

// NewVirtualNodes is NewVirtualKfake with so many nodes, on a network of the
// caller's, who can so dial it in ways of its own.
func NewVirtualNodes(tb testing.TB, network *kfake.VirtualNetwork, nodes int, client ...kgo.Opt) *Kfake {
	tb.Helper()
	ports := make([]int, nodes)
	for i := range ports {
		ports[i] = 9092 + i
	}
	return startKfake(tb, append(client, kgo.Dialer(network.DialContext)), []kfake.Opt{kfake.NumBrokers(nodes), kfake.Ports(ports...), kfake.ListenFn(network.Listen)})
}

func startKfake(tb testing.TB, client []kgo.Opt, opts []kfake.Opt) *Kfake {
	tb.Helper()
	cluster, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1)}, opts...)...)
	if err != nil {
		tb.Fatalf("start kfake: %v", err)
	}
	tb.Cleanup(cluster.Close)
	addrs := cluster.ListenAddrs()
	return &Kfake{Cluster: cluster, opts: append(client, kgo.SeedBrokers(addrs...)), nodes: len(addrs)}
}

// Name is "kfake".
func (k *Kfake) Name() string { return "kfake" }

// Addrs are the addresses of its nodes.
func (k *Kfake) Addrs() []string { return k.Cluster.ListenAddrs() }

// Opts connect a client, over the in-memory network if it is on one.
func (k *Kfake) Opts() []kgo.Opt { return append([]kgo.Opt(nil), k.opts...) }

// Features of a kfake.
func (k *Kfake) Features() Features { return Features{Transactions: true, Nodes: k.nodes} }
