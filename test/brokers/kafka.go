package brokers

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/recon-dlq/recon-dlq/test/authority"
)

const (
	// bootTimeout is far above the 4 s that one broker takes, and the 10 s of
	// three: machines of continuous integration are slow and run other tests at
	// the same time.
	bootTimeout = 3 * time.Minute
	bootTries   = 3 // a port can be taken between the choice and the boot

	adminUser = "admin"
)

//go:embed kafka/log4j2.yaml
var log4j2 []byte

// Options of an Apache Kafka cluster. The zero value is one node without ACLs.
type Options struct {
	// Nodes is the number of combined brokers and controllers; 0 is one.
	// From three on, topics of the cluster itself have three replicas.
	Nodes int
	// Authorizer turns on StandardAuthorizer. Clients of Opts are User:ANONYMOUS
	// and may do nothing but what an ACL allows; AdminOpts are for a super user.
	Authorizer bool
	// Secure gives every node listeners with TLS and SASL beside the plain one,
	// see ListenSASL and the others.
	Secure bool
	// TransactionVersion is the feature level of transaction.version at format,
	// 1 for the protocol before KIP-890; 0 leaves Kafka's default.
	TransactionVersion int
	// Version of Apache Kafka, 4.0.0 or later; empty is KafkaVersion.
	Version string
	// Doors is the number of listeners that every node has beside its own, each
	// for a client that is to come over a proxy, see Kafka.Doors.
	Doors int
	// Disk is the size in bytes of the disk that every node has for itself, see
	// Kafka.Fill; 0: the nodes use the machine's. It takes the right to mount.
	Disk int64
	// Properties are more server properties; they win over the harness's.
	Properties map[string]string
}

// Kafka is an Apache Kafka cluster of Java processes on loopback.
type Kafka struct {
	opts      Options
	dir       string
	java      string
	libs      string
	clusterID string
	password  string               // of the super user and SecureUser; random, for this cluster only
	authority *authority.Authority // with Options.Secure
	unlock    func()               // holds dir
	nodes     []*node
}

type node struct {
	id     int
	ports  struct{ client, controller, admin int }
	secure map[string]int // ports, by the name of the listener
	doors  []Door
	proc   *process
}

// Door is a listener of a node that sends its clients to another address: it
// advertises that of a proxy, which the caller runs. So a client that comes
// through a door stays on its own path to the cluster.
type Door struct {
	Proxy  string // host:port that clients are sent to; free until the caller listens
	Listen string // host:port of the node itself
}

// NewKafka starts an Apache Kafka cluster for one test and removes it at the
// end. Most tests want SharedKafka, which boots once. It skips the test where
// Java or the jars are not available, see RequireKafka, and with -short.
func NewKafka(tb testing.TB, opts Options) *Kafka {
	tb.Helper()
	if testing.Short() {
		tb.Skip("apache kafka is left out by -short")
	}
	k, err := StartKafka(opts)
	if err != nil {
		unavailable(tb, opts.Disk == 0, err)
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Log(k.Logs(10))
		}
		k.Stop()
	})
	return k
}

// StartKafka starts an Apache Kafka cluster and waits until it answers. It is
// for programs; tests call NewKafka. It returns ErrUnavailable where Java or the
// jars cannot be had. Call Stop at the end.
func StartKafka(opts Options) (*Kafka, error) {
	opts.Nodes = max(opts.Nodes, 1)
	opts.Version = cmp.Or(opts.Version, KafkaVersion)
	java, err := findJava()
	if err != nil {
		return nil, err
	}
	libs, err := jars(opts.Version)
	if err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		k := &Kafka{opts: opts, java: java, libs: libs, clusterID: randomID(), password: rand.Text()}
		err := k.up()
		if err == nil {
			return k, nil
		}
		logs := k.Logs(10)
		k.Stop()
		if try == bootTries || !strings.Contains(logs, "Address already in use") {
			return nil, fmt.Errorf("start apache kafka: %w\n%s", err, logs)
		}
	}
}

func (k *Kafka) up() error {
	root := filepath.Join(os.TempDir(), fmt.Sprintf("recon-dlq-kafka-%d", os.Getuid()))
	removeStale(root)
	if err := os.MkdirAll(root, 0o700); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(root, "cluster-")
	if err != nil {
		return err
	}
	k.dir = dir
	if k.unlock, err = lock(filepath.Join(dir, "lock")); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "log4j2.yaml"), log4j2, 0o644); err != nil {
		return err
	}
	if k.opts.Secure {
		if err := k.keystores(); err != nil {
			return err
		}
	}
	for id := 1; id <= k.opts.Nodes; id++ {
		n := &node{id: id, secure: map[string]int{}}
		for _, port := range []*int{&n.ports.client, &n.ports.controller, &n.ports.admin} {
			if *port, err = freePort(); err != nil {
				return err
			}
		}
		for _, name := range secureListeners {
			if n.secure[name], err = freePort(); err != nil {
				return err
			}
		}
		for range k.opts.Doors {
			proxy, err := freePort()
			if err != nil {
				return err
			}
			listen, err := freePort()
			if err != nil {
				return err
			}
			n.doors = append(n.doors, Door{Proxy: loopback(proxy), Listen: loopback(listen)})
		}
		k.nodes = append(k.nodes, n)
	}
	for _, n := range k.nodes {
		if k.opts.Disk > 0 {
			if err := mountDisk(k.disk(n), k.opts.Disk); err != nil {
				return err
			}
		}
		if err := k.format(n); err != nil {
			return err
		}
	}
	for _, n := range k.nodes {
		if err := k.start(n); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), bootTimeout)
	defer cancel()
	return k.Ready(ctx)
}

// Name is "kafka".
func (k *Kafka) Name() string { return "kafka" }

// Addrs are the client listeners of all nodes.
func (k *Kafka) Addrs() []string {
	addrs := make([]string, len(k.nodes))
	for i, n := range k.nodes {
		addrs[i] = loopback(n.ports.client)
	}
	return addrs
}

// Version is the version of Apache Kafka that runs.
func (k *Kafka) Version() string { return k.opts.Version }

// Doors are door number i, from 0, of all nodes, in the order of Addrs.
func (k *Kafka) Doors(i int) []Door {
	doors := make([]Door, len(k.nodes))
	for j, n := range k.nodes {
		doors[j] = n.doors[i]
	}
	return doors
}

// Opts connect a client, without authentication.
func (k *Kafka) Opts() []kgo.Opt { return []kgo.Opt{kgo.SeedBrokers(k.Addrs()...)} }

// AdminOpts connect a super user: to make topics and ACLs on a cluster with an
// authorizer. Without one they are Opts.
func (k *Kafka) AdminOpts() []kgo.Opt {
	if !k.opts.Authorizer {
		return k.Opts()
	}
	addrs := make([]string, len(k.nodes))
	for i, n := range k.nodes {
		addrs[i] = loopback(n.ports.admin)
	}
	return []kgo.Opt{kgo.SeedBrokers(addrs...), kgo.SASL(plain.Auth{User: adminUser, Pass: k.password}.AsMechanism())}
}

// Features of Apache Kafka.
func (k *Kafka) Features() Features {
	return Features{RealKafka: true, Transactions: true, Restart: true, Authorizer: k.opts.Authorizer, Nodes: len(k.nodes)}
}

// Kill ends a node as kill -9 does; nodes count from 1.
func (k *Kafka) Kill(node int) { k.nodes[node-1].proc.kill() }

// Pause stops a node's process with SIGSTOP: it is there and does not answer.
func (k *Kafka) Pause(node int) error { return k.nodes[node-1].proc.signal(syscall.SIGSTOP) }

// Continue lets a paused node run again.
func (k *Kafka) Continue(node int) error { return k.nodes[node-1].proc.signal(syscall.SIGCONT) }

// Start starts a killed node again on its data. It does not wait: see Ready.
func (k *Kafka) Start(node int) error { return k.start(k.nodes[node-1]) }

// Ended says whether a node's process has ended, by itself or by Kill.
func (k *Kafka) Ended(node int) bool { return k.nodes[node-1].proc.ended() }

// Fill takes all room on a node's own disk, see Options.Disk. Kafka ends when its
// only disk fails a write.
func (k *Kafka) Fill(node int) error {
	file, err := os.Create(k.ballast(k.nodes[node-1]))
	if err != nil {
		return err
	}
	defer file.Close()
	for size := 1 << 20; size > 0; {
		if _, err := file.Write(make([]byte, size)); errors.Is(err, syscall.ENOSPC) {
			size /= 2
		} else if err != nil {
			return err
		}
	}
	return nil
}

// MakeRoom gives back what Fill has taken.
func (k *Kafka) MakeRoom(node int) error { return os.Remove(k.ballast(k.nodes[node-1])) }

// LoseLogs removes the logs of a topic from the disk of a node that has ended: it
// comes back with empty ones.
func (k *Kafka) LoseLogs(node int, topic string) error {
	logs, err := filepath.Glob(filepath.Join(k.logs(k.nodes[node-1]), topic+"-[0-9]*"))
	if err == nil && len(logs) == 0 {
		err = fmt.Errorf("node %d has no logs of topic %s", node, topic)
	}
	for _, log := range logs {
		err = errors.Join(err, os.RemoveAll(log))
	}
	return err
}

// Wipe gives a node that has ended an empty disk: it comes back with the same
// node and cluster id, and nothing else.
func (k *Kafka) Wipe(node int) error {
	n := k.nodes[node-1]
	if err := os.RemoveAll(k.logs(n)); err != nil {
		return err
	}
	return k.format(n)
}

// Ready waits until every node is a registered broker that serves requests. It
// fails at once when a node's process ends.
func (k *Kafka) Ready(ctx context.Context) error {
	cl, err := kgo.NewClient(append(k.AdminOpts(), kgo.MetadataMinAge(100*time.Millisecond))...)
	if err != nil {
		return err
	}
	defer cl.Close()
	// Not by kadm: a request without topics is answered from what the client has
	// seen, which may be from before the last node came.
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{}
	for {
		ask, cancel := context.WithTimeout(ctx, 2*time.Second)
		meta, err := req.RequestWith(ask, cl)
		cancel()
		known := 0
		if err == nil {
			known = len(meta.Brokers)
		}
		if known == len(k.nodes) {
			return nil
		}
		for _, n := range k.nodes {
			if n.proc.ended() {
				return fmt.Errorf("node %d has ended", n.id)
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("apache kafka did not answer in time (%d of %d nodes): %w", known, len(k.nodes), errors.Join(context.Cause(ctx), err))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Stop ends all nodes and removes their data. It may be called again.
func (k *Kafka) Stop() {
	for _, n := range k.nodes {
		if n.proc != nil {
			n.proc.kill()
		}
	}
	if k.dir != "" {
		removeCluster(k.dir)
	}
	if k.unlock != nil {
		k.unlock()
	}
}

// Logs returns the last lines of every node's output and log.
func (k *Kafka) Logs(lines int) string {
	var b strings.Builder
	for _, n := range k.nodes {
		for _, file := range []string{k.file(n, "out"), k.file(n, "log")} {
			if text, err := os.ReadFile(file); err == nil && len(text) > 0 {
				fmt.Fprintf(&b, "%s:\n%s\n", filepath.Base(file), strings.ReplaceAll(lastLines(string(text), lines), " | ", "\n"))
			}
		}
	}
	return b.String()
}

func (k *Kafka) file(n *node, ext string) string {
	return filepath.Join(k.dir, fmt.Sprintf("node-%d.%s", n.id, ext))
}

// disk is where a node's own disk is mounted, if it has one.
func (k *Kafka) disk(n *node) string { return filepath.Join(k.dir, fmt.Sprintf("data-%d", n.id)) }

func (k *Kafka) logs(n *node) string { return filepath.Join(k.disk(n), "logs") }

func (k *Kafka) ballast(n *node) string { return filepath.Join(k.disk(n), "ballast") }

func (k *Kafka) start(n *node) error {
	proc, err := start(k.file(n, "out"), k.java, append(k.jvm(n), "-Xms256m", "-Xmx512m", "kafka.Kafka", k.file(n, "properties"))...)
	if err != nil {
		return err
	}
	n.proc = proc
	return nil
}

// jvm trades peak speed for a fast start and little memory.
func (k *Kafka) jvm(n *node) []string {
	return []string{"-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:ErrorFile=" + k.file(n, "crash"),
		"-Dlog4j2.configurationFile=" + filepath.Join(k.dir, "log4j2.yaml"), "-Drecon.log=" + k.file(n, "log"),
		"-cp", filepath.Join(k.libs, "*")}
}

func (k *Kafka) format(n *node) error {
	var text bytes.Buffer
	properties := k.properties(n)
	for _, key := range slices.Sorted(maps.Keys(properties)) {
		fmt.Fprintf(&text, "%s=%s\n", key, properties[key])
	}
	// 0600: with an authorizer the super user's password is in it.
	if err := os.WriteFile(k.file(n, "properties"), text.Bytes(), 0o600); err != nil {
		return err
	}
	args := append(k.jvm(n), "kafka.tools.StorageTool", "format", "-t", k.clusterID, "-c", k.file(n, "properties"))
	if v := k.opts.TransactionVersion; v > 0 {
		args = append(args, "--feature", fmt.Sprintf("transaction.version=%d", v))
	}
	if k.opts.Secure {
		args = append(args, k.scramUsers()...)
	}
	proc, err := start(k.file(n, "out"), k.java, args...)
	if err != nil {
		return err
	}
	select {
	case <-proc.done:
	case <-time.After(bootTimeout):
		proc.kill()
	}
	if !proc.cmd.ProcessState.Success() {
		return fmt.Errorf("format the storage of node %d: %s", n.id, proc.cmd.ProcessState)
	}
	return nil
}

func (k *Kafka) properties(n *node) map[string]string {
	voters := make([]string, len(k.nodes))
	for i, v := range k.nodes {
		voters[i] = fmt.Sprintf("%d@%s", v.id, loopback(v.ports.controller))
	}
	replicas, isr := "1", "1"
	if len(k.nodes) >= 3 {
		replicas, isr = "3", "2"
	}
	client := "PLAINTEXT://" + loopback(n.ports.client)
	p := map[string]string{
		"process.roles":                    "broker,controller",
		"node.id":                          fmt.Sprint(n.id),
		"controller.quorum.voters":         strings.Join(voters, ","),
		"listeners":                        client + ",CONTROLLER://" + loopback(n.ports.controller),
		"advertised.listeners":             client,
		"controller.listener.names":        "CONTROLLER",
		"listener.security.protocol.map":   "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
		"inter.broker.listener.name":       "PLAINTEXT",
		"log.dirs":                         k.logs(n),
		"auto.create.topics.enable":        "false",
		"group.initial.rebalance.delay.ms": "0",

		"default.replication.factor":                       replicas,
		"min.insync.replicas":                              isr,
		"offsets.topic.replication.factor":                 replicas,
		"offsets.topic.num.partitions":                     "4",
		"transaction.state.log.replication.factor":         replicas,
		"transaction.state.log.min.isr":                    isr,
		"transaction.state.log.num.partitions":             "4",
		"share.coordinator.state.topic.replication.factor": replicas,
		"share.coordinator.state.topic.min.isr":            isr,
		"share.coordinator.state.topic.num.partitions":     "1",

		// A test that runs wild stops at its own data, not at a full disk.
		"log.segment.bytes":               "67108864",
		"log.retention.bytes":             "1073741824",
		"log.retention.check.interval.ms": "30000",

		// Two cores and half a gigabyte, not a server.
		"num.network.threads":            "2",
		"num.io.threads":                 "4",
		"log.cleaner.dedupe.buffer.size": "16777216",
	}
	if k.opts.Authorizer {
		// Clients come unauthenticated and are ANONYMOUS. The cluster itself and
		// the tests' super user come over SASL, so that ANONYMOUS needs no rights.
		admin := "ADMIN://" + loopback(n.ports.admin)
		p["listeners"] += "," + admin
		p["advertised.listeners"] += "," + admin
		p["listener.security.protocol.map"] = "PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_PLAINTEXT,ADMIN:SASL_PLAINTEXT"
		p["inter.broker.listener.name"] = "ADMIN"
		p["sasl.enabled.mechanisms"] = "PLAIN"
		p["sasl.mechanism.inter.broker.protocol"] = "PLAIN"
		p["sasl.mechanism.controller.protocol"] = "PLAIN"
		login := fmt.Sprintf(`org.apache.kafka.common.security.plain.PlainLoginModule required username="%[1]s" password="%[2]s" user_%[1]s="%[2]s";`, adminUser, k.password)
		p["listener.name.admin.plain.sasl.jaas.config"] = login
		p["listener.name.controller.plain.sasl.jaas.config"] = login
		p["authorizer.class.name"] = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
		p["super.users"] = "User:" + adminUser
	}
	if k.opts.Secure {
		k.secure(n, p)
	}
	for i, door := range n.doors {
		name := fmt.Sprintf("DOOR%d", i)
		p["listeners"] += fmt.Sprintf(",%s://%s", name, door.Listen)
		p["advertised.listeners"] += fmt.Sprintf(",%s://%s", name, door.Proxy)
		p["listener.security.protocol.map"] += "," + name + ":PLAINTEXT"
	}
	maps.Copy(p, k.opts.Properties)
	return p
}

func loopback(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

// freePort picks a port below the range that the kernel gives to outgoing
// connections (32768 up on Linux): so it is still free when a killed node comes back.
func freePort() (int, error) {
	for range 100 {
		port := 15000 + mathrand.IntN(17000)
		l, err := net.Listen("tcp4", loopback(port))
		if err == nil {
			return port, l.Close()
		}
	}
	return 0, errors.New("no free port on loopback between 15000 and 32000")
}

// randomID makes a cluster id: a UUID in URL-safe base64, as Kafka writes it.
func randomID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails, see its documentation
	id[0] &= 0x7f           // an id must not start with '-', which base64 makes of 0xf8 to 0xfb
	return base64.RawURLEncoding.EncodeToString(id[:])
}

// removeStale removes the data of clusters whose test binary was killed: nobody
// holds their lock.
func removeStale(root string) {
	dirs, _ := filepath.Glob(filepath.Join(root, "cluster-*"))
	for _, dir := range dirs {
		file, err := os.Open(filepath.Join(dir, "lock"))
		if err != nil {
			continue // just being made
		}
		if syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			removeCluster(dir)
		}
		file.Close()
	}
}

// removeCluster removes a cluster's data, with the disks of its nodes. What stays
// is removed by the next start.
func removeCluster(dir string) {
	disks, _ := filepath.Glob(filepath.Join(dir, "data-*"))
	for _, disk := range disks {
		unmountDisk(disk)
	}
	_ = os.RemoveAll(dir)
}
