package kafka

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Resource is a kind of thing that Kafka guards, as kafka-acls names its flag.
type Resource string

// The guarded resources.
const (
	ResourceTopic         Resource = "topic"
	ResourceGroup         Resource = "group"
	ResourceTransactional Resource = "transactional-id"
	ResourceCluster       Resource = "cluster"
)

// Operation is what a right allows, as kafka-acls names it.
type Operation string

// The operations the product needs.
const (
	Read            Operation = "READ"
	Write           Operation = "WRITE"
	Create          Operation = "CREATE"
	Alter           Operation = "ALTER"
	Describe        Operation = "DESCRIBE"
	DescribeConfigs Operation = "DESCRIBE_CONFIGS"
	AlterConfigs    Operation = "ALTER_CONFIGS"
)

var operationBits = map[Operation]kmsg.ACLOperation{
	Read: kmsg.ACLOperationRead, Write: kmsg.ACLOperationWrite, Create: kmsg.ACLOperationCreate,
	Alter: kmsg.ACLOperationAlter, Describe: kmsg.ACLOperationDescribe,
	DescribeConfigs: kmsg.ACLOperationDescribeConfigs, AlterConfigs: kmsg.ACLOperationAlterConfigs,
}

// RightError says that the cluster does not allow what the program needs, and
// which grant mends it.
type RightError struct {
	Resource  Resource
	Name      string // of the topic, group or transactional id; unused for the cluster
	Operation Operation
}

// Error names the right and the kafka-acls command that grants it.
func (e *RightError) Error() string {
	if e.Resource == ResourceCluster {
		return fmt.Sprintf("missing right: %[1]s on the cluster: grant it with kafka-acls.sh --add --allow-principal User:NAME --operation %[1]s --cluster", e.Operation)
	}
	return fmt.Sprintf("missing right: %[1]s on %[2]s %[3]q: grant it with kafka-acls.sh --add --allow-principal User:NAME --operation %[1]s --%[2]s %[3]q",
		e.Operation, e.Resource, e.Name)
}

// Need is a right that a request needs.
func Need(r Resource, name string, op Operation) *RightError {
	return &RightError{Resource: r, Name: name, Operation: op}
}

// Explain turns an error of the cluster into one that names the place and the
// fix. need is the right the failed request needed: an authorization failure
// becomes that *RightError. Every answer still matches err with errors.Is.
// Errors it knows nothing better about come back with need's name before them;
// nil stays nil.
func Explain(err error, need *RightError) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.GroupAuthorizationFailed),
		errors.Is(err, kerr.TransactionalIDAuthorizationFailed), errors.Is(err, kerr.ClusterAuthorizationFailed):
		return &explained{msg: need.Error(), errs: []error{need, err}}
	case errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.UnknownTopicID):
		missing := &MissingError{Topics: []string{need.Name}}
		return &explained{msg: missing.Error(), errs: []error{missing, err}}
	case errors.Is(err, kerr.FencedInstanceID), errors.Is(err, kerr.ProducerFenced), errors.Is(err, kerr.InvalidProducerEpoch):
		return fmt.Errorf("%s %q is in use by somebody else: give each worker a kafka.instance of its own: %w", need.Resource, need.Name, err)
	case errors.Is(err, kerr.SaslAuthenticationFailed):
		return fmt.Errorf("the cluster does not accept this identity: %w", err)
	default:
		return fmt.Errorf("%s %q: %w", need.Resource, need.Name, err)
	}
}

// explained is a message with the errors it stands for.
type explained struct {
	msg  string
	errs []error
}

func (e *explained) Error() string   { return e.msg }
func (e *explained) Unwrap() []error { return e.errs }

// allowed says whether a bit field of allowed operations (KIP-430) has op. A
// broker that was not asked, or does not know, sends the smallest number:
// then nothing is known, and the right is assumed.
func allowed(bits int32, op Operation) bool {
	return bits == math.MinInt32 || bits&(1<<operationBits[op]) != 0
}

// groupRight checks the right to join a group and commit in it, before it is
// used. A heartbeat by a member that does not exist needs the same right, and
// changes nothing: the group answers that it does not know the member. (A
// DescribeGroups tells the allowed operations only of a group that exists.)
func groupRight(ctx context.Context, cl *kgo.Client, group string) error {
	req := kmsg.NewPtrHeartbeatRequest()
	req.Group = group
	req.MemberID = "recon-dlq-verify"
	resp, err := req.RequestWith(ctx, cl)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	switch {
	case errors.Is(err, kerr.UnknownMemberID), errors.Is(err, kerr.GroupIDNotFound), errors.Is(err, kerr.IllegalGeneration),
		errors.Is(err, kerr.RebalanceInProgress):
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	default:
		return Explain(err, Need(ResourceGroup, group, Read))
	}
}
