package sim

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// kafka adds what Apache Kafka does and the fake broker does not:
//
//   - Metadata over the broker's limit fails its partition only; the others of the request are staged.
//   - A transaction's progress that is too large as a whole is UNKNOWN_SERVER_ERROR for all of it.
//   - The markers of a transaction follow its end a moment later. Until then its transactional id gets
//     CONCURRENT_TRANSACTIONS and its offsets are UNSTABLE_OFFSET_COMMIT. A new producer id over an open
//     transaction aborts that first, which takes the same moment.
//   - A plain commit wins over an open transaction's offsets. The fake broker lets the transaction win, so
//     that it would not show: a member that does it is told of in broken.
//
// It sees each request just before the brokers act on it, and never their answers.
type kafka struct {
	limit int // UTF-16 characters of one partition's metadata
	room  int // of all metadata of one transaction's request

	mu     sync.Mutex
	rnd    *rand.Rand
	txns   map[string]*txn
	now    verdict // on the request that the brokers act on
	counts map[string]int
	broken []string // what no worker may do
	quiet  bool     // no more faults of the network
}

// txn is what is known of a transactional id.
type txn struct {
	timeout time.Duration
	epoch   int16     // of the transaction that is open, or was last
	ended   int16     // epochs up to this one are over
	began   time.Time // zero: none is open
	busy    time.Time // until then its markers are written
	group   string    // whose offsets are in it
	member  string    // who put them there
	gen     int32
	staged  map[place]bool
	abort   fate      // of its abort
	of      int16     // the epoch that has this fate
	lost    time.Time // until then it has
}

// place is a partition.
type place struct {
	topic     string
	partition int32
}

// verdict is what becomes of one request.
type verdict struct {
	req  kmsg.Request
	err  *kerr.Error
	long map[place]bool // partitions whose metadata is too long
}

// The kinds of faults that are counted.
const (
	metadataTooLong   = "metadata too long"
	progressTooLarge  = "progress too large"
	concurrent        = "concurrent transactions"
	unstableOpen      = "unstable: transaction open"
	unstableMarkers   = "unstable: markers to come"
	abortBroken       = "abort lost with its connection"
	abortSwallowed    = "abort lost without a word"
	sessionOver       = "session over"
	rebalanceOver     = "rebalance over"
	plainOverOpenText = "a plain commit of %s/%d while the same member has a transaction open with that partition's progress"
)

// kinds are the faults that must come in a run of many seeds, or nothing is
// known about them.
var kinds = []string{metadataTooLong, progressTooLarge, concurrent, unstableOpen, unstableMarkers, abortBroken, abortSwallowed, sessionOver}

// newKafka lets the cluster of w do what Apache Kafka does.
func newKafka(w *world) *kafka {
	k := &kafka{limit: 4096, room: 1 << 20, rnd: rand.New(rand.NewPCG(w.seed, 0xa9ac4e)), txns: map[string]*txn{}, counts: map[string]int{}}
	if k.rnd.IntN(3) > 0 { // so small that a few hundred records pass it
		k.limit = 64 + k.rnd.IntN(32)
		k.room = k.limit + k.rnd.IntN(3*k.limit)
	}
	keys := []kmsg.Key{
		kmsg.Produce, kmsg.EndTxn, kmsg.TxnOffsetCommit, kmsg.AddPartitionsToTxn, kmsg.AddOffsetsToTxn, kmsg.InitProducerID, kmsg.OffsetFetch, kmsg.OffsetCommit,
	}
	for _, key := range keys {
		w.b.Cluster.ControlKey(int16(key), func(req kmsg.Request) (kmsg.Response, error, bool) {
			k.name(w.b.Cluster, req)
			k.see(req)
			return nil, nil, false
		})
	}
	for _, e := range []*kerr.Error{kerr.ConcurrentTransactions, kerr.UnknownServerError} {
		w.b.Cluster.Fault(kfake.Fault{Keys: keys, Err: e, Count: -1, When: func(req kmsg.Request) bool { return k.refuses(req, e) }})
	}
	for partition := range w.parts { // naming one makes it the partition's error and not the group's
		w.b.Cluster.Fault(kfake.Fault{
			Keys: []kmsg.Key{kmsg.OffsetFetch}, Partitions: []int32{partition}, Err: kerr.UnstableOffsetCommit, Count: -1,
			When: func(req kmsg.Request) bool { return k.refuses(req, kerr.UnstableOffsetCommit) },
		})
		for _, topic := range w.committed() {
			w.b.Cluster.Fault(kfake.Fault{
				Keys: []kmsg.Key{kmsg.TxnOffsetCommit, kmsg.OffsetCommit}, Topic: topic, Partitions: []int32{partition}, Err: kerr.OffsetMetadataTooLarge, Count: -1,
				When: func(req kmsg.Request) bool { return k.tooLong(req, place{topic, partition}) },
			})
		}
	}
	return k
}

// committed are the topics whose progress workers commit.
func (w *world) committed() []string {
	return append([]string{w.names.Source, w.names.Hold + "ledger"}, w.names.Tiers()...)
}

func (k *kafka) refuses(req kmsg.Request, err *kerr.Error) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.now.req == req && k.now.err == err
}

func (k *kafka) tooLong(req kmsg.Request, p place) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.now.req == req && k.now.long[p]
}

// calm ends what is a fault of the network.
func (k *kafka) calm() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.quiet = true
}

// count takes note that a kind of fault has come.
func (k *kafka) count(kind string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.counts[kind]++
}

// name fills in the names of topics that a request knows by their ids only.
func (k *kafka) name(c *kfake.Cluster, req kmsg.Request) {
	fill := func(name *string, id [16]byte) {
		if *name != "" {
			return
		}
		if info := c.TopicIDInfo(id); info != nil {
			*name = info.Topic
		}
	}
	switch r := req.(type) {
	case *kmsg.TxnOffsetCommitRequest:
		for i := range r.Topics {
			fill(&r.Topics[i].Topic, r.Topics[i].TopicID)
		}
	case *kmsg.OffsetCommitRequest:
		for i := range r.Topics {
			fill(&r.Topics[i].Topic, r.Topics[i].TopicID)
		}
	}
}

// see decides what becomes of a request, and follows the transactions.
func (k *kafka) see(req kmsg.Request) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.now = verdict{req: req}
	now := time.Now()
	switch r := req.(type) {
	case *kmsg.InitProducerIDRequest:
		if r.TransactionalID == nil {
			return
		}
		t := k.txn(*r.TransactionalID)
		t.timeout = time.Duration(r.TransactionTimeoutMillis) * time.Millisecond
		if t.open(now) {
			t.end(now.Add(k.markers()))
		}
		if k.busy(t, now) {
			return
		}
		t.ended = max(t.ended, t.epoch)
	case *kmsg.ProduceRequest:
		if r.TransactionID != nil {
			k.part(*r.TransactionID, -1, now)
		}
	case *kmsg.AddPartitionsToTxnRequest:
		k.part(r.TransactionalID, r.ProducerEpoch, now)
	case *kmsg.AddOffsetsToTxnRequest:
		k.part(r.TransactionalID, r.ProducerEpoch, now)
	case *kmsg.TxnOffsetCommitRequest:
		t, ok := k.part(r.TransactionalID, r.ProducerEpoch, now)
		if !ok {
			return
		}
		size := 0
		k.now.long = map[place]bool{}
		for _, topic := range r.Topics {
			for _, p := range topic.Partitions {
				n := characters(p.Metadata)
				size += n
				if n > k.limit {
					k.now.long[place{topic.Topic, p.Partition}] = true
				}
			}
		}
		switch {
		case size > k.room:
			k.now.err = kerr.UnknownServerError
			k.counts[progressTooLarge]++
			return
		case len(k.now.long) > 0:
			k.counts[metadataTooLong]++
		}
		t.group, t.member, t.gen = r.Group, r.MemberID, r.Generation
		for _, topic := range r.Topics {
			for _, p := range topic.Partitions {
				t.staged[place{topic.Topic, p.Partition}] = true
			}
		}
	case *kmsg.EndTxnRequest:
		t := k.txn(r.TransactionalID)
		if k.busy(t, now) || r.ProducerEpoch <= t.ended {
			return
		}
		t.end(now.Add(k.markers()))
		if r.Version >= 5 { // each transaction has an epoch of its own
			t.ended = r.ProducerEpoch
		}
	case *kmsg.OffsetFetchRequest:
		if !r.RequireStable {
			return
		}
		for _, t := range k.txns {
			switch {
			case len(t.staged) == 0 || !slices.ContainsFunc(r.Groups, func(g kmsg.OffsetFetchRequestGroup) bool { return g.Group == t.group }):
			case t.open(now): // the fake broker says so by itself
				k.counts[unstableOpen]++
				return
			case now.Before(t.busy):
				k.now.err = kerr.UnstableOffsetCommit
				k.counts[unstableMarkers]++
				return
			}
		}
	case *kmsg.OffsetCommitRequest:
		k.now.long = map[place]bool{}
		for _, topic := range r.Topics {
			for _, p := range topic.Partitions {
				at := place{topic.Topic, p.Partition}
				if characters(p.Metadata) > k.limit {
					k.now.long[at] = true
				}
				for _, t := range k.txns {
					if t.open(now) && t.group == r.Group && t.member == r.MemberID && t.gen == r.Generation && t.staged[at] {
						k.broken = append(k.broken, fmt.Sprintf(plainOverOpenText, at.topic, at.partition))
					}
				}
			}
		}
		if len(k.now.long) > 0 {
			k.counts[metadataTooLong]++
		}
	}
}

// part is a request that takes part in a transaction, and so begins it. It
// reports whether the coordinator lets it.
func (k *kafka) part(id string, epoch int16, now time.Time) (*txn, bool) {
	t := k.txn(id)
	switch {
	case k.busy(t, now):
		return t, false
	case epoch >= 0 && epoch <= t.ended: // late: it is refused for that
		return t, false
	case !t.open(now):
		t.began, t.staged = now, map[place]bool{}
	}
	t.epoch = max(t.epoch, epoch)
	return t, true
}

// busy refuses a request while the markers of its transaction are written.
func (k *kafka) busy(t *txn, now time.Time) bool {
	if !now.Before(t.busy) {
		return false
	}
	k.now.err = kerr.ConcurrentTransactions
	k.counts[concurrent]++
	return true
}

func (k *kafka) txn(id string) *txn {
	t := k.txns[id]
	if t == nil {
		t = &txn{timeout: time.Minute, epoch: -1, ended: -1, of: -1, staged: map[place]bool{}}
		k.txns[id] = t
	}
	return t
}

// markers is how long the markers of a transaction take: a millisecond with one
// broker, up to a tenth of a second with three, now and then more.
func (k *kafka) markers() time.Duration {
	switch k.rnd.IntN(10) {
	case 0:
		return time.Duration(50+k.rnd.IntN(250)) * time.Millisecond
	case 1, 2, 3:
		return 20 * time.Millisecond
	}
	return time.Millisecond
}

// open reports whether a transaction is open that has not timed out.
func (t *txn) open(now time.Time) bool { return !t.began.IsZero() && now.Sub(t.began) < t.timeout }

func (t *txn) end(markers time.Time) { t.began, t.busy = time.Time{}, markers }

// fate is what becomes of a request on its way out.
type fate int

const (
	arrives  fate = iota
	breaks        // the connection breaks
	vanishes      // there is no answer, and none to what follows on that connection
)

// aborts draws the fate of an abort. One that is lost is lost with all that
// repeat it, until its client has given up.
func (k *kafka) aborts(id string, epoch int16) fate {
	k.mu.Lock()
	defer k.mu.Unlock()
	t, now := k.txn(id), time.Now()
	switch {
	case k.quiet:
		return arrives
	case t.of != epoch || !now.Before(t.lost):
		t.of, t.lost, t.abort = epoch, now.Add(abortGivenUp), arrives
		switch k.rnd.IntN(6) {
		case 0:
			t.abort = breaks
			k.counts[abortBroken]++
		case 1:
			t.abort = vanishes
			k.counts[abortSwallowed]++
		}
	}
	return t.abort
}

// abortGivenUp is longer than any client repeats an abort.
const abortGivenUp = 10 * time.Second

// characters are what the broker counts.
func characters(metadata *string) int {
	if metadata == nil {
		return 0
	}
	return len(utf16.Encode([]rune(*metadata)))
}

// came is how often each kind of fault has come.
func (k *kafka) came() map[string]int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return maps.Clone(k.counts)
}

// told fails the test for what no worker may do.
func (k *kafka) told(t *testing.T) {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, b := range slices.Compact(k.broken) {
		t.Error(b)
	}
}

// tally is how often each kind has come, in words.
func tally(counts map[string]int) string {
	var all []string
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		all = append(all, fmt.Sprintf("%s %d", kind, counts[kind]))
	}
	return strings.Join(all, ", ")
}
