// Command capture runs other systems' real libraries against an Apache Kafka of
// its own, lets them fail, and keeps the dead letters that they wrote as the
// fixtures of package foreign.
//
//	go run ./test/foreign/capture              # all of them
//	go run ./test/foreign/capture share-4.4.0  # some, by name
//
// It is run by hand when a system has a new version. It needs a JDK of Java 17
// or later, Maven, and the network for what Maven and Go have not yet fetched.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/recon-dlq/recon-dlq/test/brokers"
	"github.com/recon-dlq/recon-dlq/test/foreign"
)

// dir is where this package's files are, seen from the root of the repository.
const dir = "test/foreign"

// patience bounds how long one system may take to write its dead letters.
const patience = 3 * time.Minute

// system is a program that writes dead letters and then waits to be killed.
type system struct {
	name     string   // of the fixture
	project  string   // the directory of its source
	main     string   // the Java class; empty: a Go program
	property string   // Maven's, NAME=VERSION
	topics   string   // a pattern of the topics it writes dead letters to
	records  int      // how many it writes
	software []string // the libraries that are named in the fixture, by the beginning of their names
}

const springTopics = `.+-(dlt|retry).*`

var (
	springJars   = []string{"spring-kafka-", "kafka-clients-"}
	kafkaVersion = "kafka.version=" + brokers.KafkaVersion
)

var systems = []system{
	{"spring-4.1.2", "spring", "Spring", "spring-kafka.version=4.1.2", springTopics, 7, springJars},
	{"spring-3.3.16", "spring", "Spring", "spring-kafka.version=3.3.16", springTopics, 7, springJars},
	{"connect-" + brokers.KafkaVersion, "kafka", "Connect", kafkaVersion, "connect-dlq", 3, []string{"connect-runtime-"}},
	{"streams-" + brokers.KafkaVersion, "kafka", "Streams", kafkaVersion, "streams-dlq", 2, []string{"kafka-streams-"}},
	{"share-" + brokers.KafkaVersion, "kafka", "Share", kafkaVersion, `dlq\..+`, 4, []string{"kafka-clients-"}},
	{"watermill-1.5.1", "gocapture", "", "", "watermill-poison", 1, []string{"github.com/ThreeDotsLabs/"}},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "capture: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, names []string) error {
	if _, err := os.Stat(dir); err != nil {
		return fmt.Errorf("run it from the root of the repository: %w", err)
	}
	for _, name := range names {
		if !slices.ContainsFunc(systems, func(s system) bool { return s.name == name }) {
			return fmt.Errorf("there is no system %s", name)
		}
	}
	for _, s := range systems {
		if len(names) > 0 && !slices.Contains(names, s.name) {
			continue
		}
		if err := s.capture(ctx); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

// capture writes the fixture of one system, on a cluster that nobody else has used.
func (s system) capture(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errors.New("not all dead letters came in time"))
	defer cancel()
	out, err := os.MkdirTemp("", "foreign-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(out)
	program, software, err := s.build(ctx, out)
	if err != nil {
		return err
	}
	kafka, err := brokers.StartKafka(brokers.Options{})
	if err != nil {
		return err
	}
	defer kafka.Stop()

	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, program[0], append(program[1:], kafka.Addrs()[0])...)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &said, &said, time.Second
	if err := cmd.Start(); err != nil {
		return err
	}
	capture := foreign.Capture{Software: append([]string{"apache-kafka-" + brokers.KafkaVersion}, software...)}
	capture.Records, err = read(ctx, kafka, s)
	cancel()
	_ = cmd.Wait() // killed
	if err != nil {
		return fmt.Errorf("%w; it said:\n%s", err, said.Bytes())
	}
	text, err := json.MarshalIndent(capture, "", " ")
	if err != nil {
		return err
	}
	path := filepath.Join(dir, "testdata", s.name+".json")
	fmt.Printf("%s: %d records by %s\n", path, len(capture.Records), strings.Join(capture.Software, ", "))
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

// build compiles the program into out. It returns how to run it, without the
// cluster's address, and the libraries that count, each with its version.
func (s system) build(ctx context.Context, out string) (program, software []string, err error) {
	if s.main == "" {
		return s.buildGo(ctx, out)
	}
	classpath := filepath.Join(out, "classpath")
	if _, err := output(exec.CommandContext(ctx, "mvn", "-q", "-B", "-f", filepath.Join(dir, s.project, "pom.xml"), "-D"+s.property, "-Dtarget="+out,
		"compile", "dependency:build-classpath", "-Dmdep.outputFile="+classpath)); err != nil {
		return nil, nil, err
	}
	jars, err := os.ReadFile(classpath)
	if err != nil {
		return nil, nil, err
	}
	for jar := range strings.SplitSeq(string(jars), string(os.PathListSeparator)) {
		if name := strings.TrimSuffix(filepath.Base(jar), ".jar"); s.counts(name) {
			software = append(software, name)
		}
	}
	return []string{"java", "-cp", filepath.Join(out, "classes") + string(os.PathListSeparator) + string(jars), s.main}, software, nil
}

func (s system) buildGo(ctx context.Context, out string) (program, software []string, err error) {
	program = []string{filepath.Join(out, "program")}
	build := exec.CommandContext(ctx, "go", "build", "-o", program[0], ".")
	build.Dir = filepath.Join(dir, s.project)
	if _, err := output(build); err != nil {
		return nil, nil, err
	}
	modules, err := output(exec.CommandContext(ctx, "go", "version", "-m", program[0]))
	if err != nil {
		return nil, nil, err
	}
	for line := range strings.Lines(modules) {
		if f := strings.Fields(line); len(f) > 2 && f[0] == "dep" && s.counts(f[1]) {
			software = append(software, f[1]+" "+f[2])
		}
	}
	return program, software, nil
}

// counts says whether a library is named in the fixture.
func (s system) counts(library string) bool {
	return slices.ContainsFunc(s.software, func(name string) bool { return strings.HasPrefix(library, name) })
}

// output runs a command to its end.
func output(cmd *exec.Cmd) (string, error) {
	said, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", cmd.Args[0], err, said)
	}
	return string(said), nil
}

// read waits for the dead letters.
func read(ctx context.Context, kafka *brokers.Kafka, s system) ([]foreign.Record, error) {
	cl, err := kgo.NewClient(append(kafka.Opts(), kgo.ConsumeRegex(), kgo.ConsumeTopics("^"+s.topics+"$"), kgo.MetadataMinAge(time.Second), kgo.MetadataMaxAge(time.Second))...)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	var records []foreign.Record
	for len(records) < s.records {
		fetches := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			var came []string
			for _, r := range records {
				came = append(came, fmt.Sprintf("%s/%d/%d", r.Topic, r.Partition, r.Offset))
			}
			return nil, fmt.Errorf("%d of %d records: %w: %q", len(records), s.records, context.Cause(ctx), came)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			record := foreign.Record{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, Timestamp: r.Timestamp.UnixMilli(), Key: r.Key, Value: r.Value}
			for _, h := range r.Headers {
				record.Headers = append(record.Headers, foreign.Header(h))
			}
			records = append(records, record)
		})
	}
	slices.SortFunc(records, func(a, b foreign.Record) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Offset, b.Offset))
	})
	return records, nil
}
