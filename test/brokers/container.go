package brokers

import (
	"context"
	"fmt"
	"time"

	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/wait"
	"github.com/twmb/franz-go/pkg/kgo"
)

// ContainerImage is what SharedContainer runs.
const ContainerImage = "apache/kafka-native:4.1.0"

const (
	containerPort  = "9092/tcp"
	containerStart = "/tmp/recon-start.sh"
	pullTimeout    = 5 * time.Minute
)

// Container is an Apache Kafka in a container.
type Container struct {
	ctr  testcontainers.Container
	addr string
}

// startContainer starts it, or returns ErrUnavailable where no Docker engine answers.
func startContainer() (c *Container, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), pullTimeout)
	defer cancel()
	if err := dockerAnswers(ctx); err != nil {
		return nil, fmt.Errorf("kafka container %w: no Docker engine answers: %w", ErrUnavailable, err)
	}
	// The address that clients are told is known only once the container runs
	// and its port is mapped: it waits for the script that says so.
	ctr, err := testcontainers.Run(ctx, ContainerImage,
		testcontainers.WithExposedPorts(containerPort),
		testcontainers.WithEntrypoint("sh", "-c", "while [ ! -f "+containerStart+" ]; do sleep 0.1; done; exec sh "+containerStart),
		testcontainers.WithEnv(map[string]string{
			"KAFKA_NODE_ID":                                  "1",
			"KAFKA_PROCESS_ROLES":                            "broker,controller",
			"KAFKA_CONTROLLER_QUORUM_VOTERS":                 "1@localhost:9093",
			"KAFKA_LISTENERS":                                "PLAINTEXT://:9092,CONTROLLER://:9093,BROKER://:9094",
			"KAFKA_LISTENER_SECURITY_PROTOCOL_MAP":           "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,BROKER:PLAINTEXT",
			"KAFKA_CONTROLLER_LISTENER_NAMES":                "CONTROLLER",
			"KAFKA_INTER_BROKER_LISTENER_NAME":               "BROKER",
			"KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR":         "1",
			"KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
			"KAFKA_TRANSACTION_STATE_LOG_MIN_ISR":            "1",
			"KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS":         "0",
			"KAFKA_AUTO_CREATE_TOPICS_ENABLE":                "false",
		}),
		testcontainers.WithAdditionalLifecycleHooks(testcontainers.ContainerLifecycleHooks{
			PostStarts: []testcontainers.ContainerHook{writeStart},
		}),
		testcontainers.WithWaitStrategyAndDeadline(bootTimeout, wait.ForLog("Kafka Server started")),
	)
	if err != nil {
		_ = testcontainers.TerminateContainer(ctr)
		return nil, fmt.Errorf("start %s: %w", ContainerImage, err)
	}
	addr, err := ctr.PortEndpoint(ctx, containerPort, "")
	if err != nil {
		_ = testcontainers.TerminateContainer(ctr)
		return nil, fmt.Errorf("find the port of %s: %w", ContainerImage, err)
	}
	return &Container{ctr: ctr, addr: addr}, nil
}

func writeStart(ctx context.Context, ctr testcontainers.Container) error {
	if err := wait.ForMappedPort(containerPort).WaitUntilReady(ctx, ctr); err != nil {
		return err
	}
	addr, err := ctr.PortEndpoint(ctx, containerPort, "PLAINTEXT")
	if err != nil {
		return err
	}
	script := fmt.Sprintf("export KAFKA_ADVERTISED_LISTENERS=%s,BROKER://localhost:9094\nexec /etc/kafka/docker/run\n", addr)
	return ctr.CopyToContainer(ctx, []byte(script), containerStart, 0o755)
}

// dockerAnswers asks the engine whether it is there. The library panics where it finds no way to one.
func dockerAnswers(ctx context.Context) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	provider, err := testcontainers.ProviderDefault.GetProvider()
	if err != nil {
		return err
	}
	defer provider.Close()
	return provider.Health(ctx)
}

func (c *Container) stop(ctx context.Context) {
	_ = c.ctr.Terminate(ctx) // the library's reaper removes what stays
}

// Name is "container".
func (c *Container) Name() string { return "container" }

// Addrs is its mapped port.
func (c *Container) Addrs() []string { return []string{c.addr} }

// Opts connect a client, without authentication.
func (c *Container) Opts() []kgo.Opt { return []kgo.Opt{kgo.SeedBrokers(c.addr)} }

// Features of a container.
func (c *Container) Features() Features {
	return Features{RealKafka: true, Transactions: true, Nodes: 1}
}
