package invariants

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/recon-dlq/recon-dlq/audit"
	"github.com/recon-dlq/recon-dlq/consumer/progress"
	"github.com/recon-dlq/recon-dlq/deadletter"
	"github.com/recon-dlq/recon-dlq/policy"
	"github.com/recon-dlq/recon-dlq/test/stable"
)

// id is a recon-id. Hundreds of thousands are held, so not as text.
type id [16]byte

func (i id) String() string { return hex.EncodeToString(i[:]) }

func parseID(s string) (id, bool) {
	var i id
	n, err := hex.Decode(i[:], []byte(s))
	return i, err == nil && n == len(i) && len(s) == 2*len(i)
}

// place is where a record lies; topic is an index into world.topics.
type place struct {
	topic     int32
	partition int32
	offset    int64
}

type topic struct {
	name       string
	kind       deadletter.Kind
	id         [16]byte
	partitions []int32
}

// contents are the hashes of what must never change.
type contents struct{ key, value, headers uint64 }

// copied is one visible record of a source, tier, hold or poison topic.
type copied struct {
	id        id
	kind      deadletter.Kind
	contents  contents
	size      int // bytes
	attempt   int // of a source record: the most that counting can start from
	snoozes   int
	notBefore int64 // ms since epoch, 0: none
	masked    bool
	malformed bool   // its control headers or its value cannot be trusted
	reason    string // poison
	effects   int
}

// event is what an audit event says of a record; its place in the trail is its order.
type event struct {
	kind    audit.Type
	input   place
	known   bool // input is on a topic that is checked
	attempt int
	reason  string
}

// life is one record from its arrival to its end.
type life struct {
	origin   place
	visible  bool // its origin can still be read
	rooted   bool // origin is set
	contents contents
	size     int
	copies   []place // in tiers, hold and poison topics
	events   []event
	enqueued int
}

// committed is the group's progress on one partition.
type committed struct {
	progress.Progress
	known bool // the metadata could be read; else only Low is
}

func (c committed) done(offset int64) bool {
	if !c.known || offset < c.Low || offset >= c.Top {
		return offset < c.Low
	}
	i, _ := slices.BinarySearchFunc(c.Holes, offset, func(h progress.Range, offset int64) int {
		if h.To <= offset {
			return -1
		}
		return 1
	})
	return i == len(c.Holes) || offset < c.Holes[i].From
}

// world is everything that was read.
type world struct {
	spec      Spec
	now       time.Time
	clusterID string

	topics    []topic
	byName    map[string]int32
	bounds    stable.Bounds
	committed map[place]committed // offset 0
	copies    map[place]*copied
	lives     map[id]*life
	seqs      map[place][]int64 // by input partition, offset 0
	escalated map[place]int
	gone      map[place]int // effects on positions that cannot be read any more
	strangers int           // expired events of tier copies, which could not be named

	seed   maphash.Seed
	report Report
}

func (w *world) at(p place) string {
	return fmt.Sprintf("%s/%d/%d", w.topics[p.topic].name, p.partition, p.offset)
}

func (w *world) load(ctx context.Context, cl *kgo.Client) error {
	w.seed = maphash.MakeSeed()
	w.seqs = make(map[place][]int64)
	w.escalated = make(map[place]int)
	w.gone = make(map[place]int)
	adm := kadm.NewClient(cl)
	if err := w.findTopics(ctx, adm); err != nil {
		return err
	}
	names := make([]string, len(w.topics))
	for i, t := range w.topics {
		names[i] = t.name
	}
	// Progress first: what it says is done must be visible in what is read later.
	if err := w.readProgress(ctx, cl); err != nil {
		return err
	}
	all := append(slices.Clone(names), w.spec.Audit)
	open, cancel := context.WithTimeoutCause(ctx, openTransactions, errors.New("still open after "+openTransactions.String()))
	err := stable.Wait(open, cl, all...)
	cancel()
	if err != nil {
		if ctx.Err() != nil {
			return err
		}
		w.report.fault(conservation, "%v", err) // count what can be seen
	}
	if w.bounds, err = stable.List(ctx, cl, all...); err != nil {
		return err
	}
	trail := stable.Bounds{w.spec.Audit: w.bounds[w.spec.Audit]}
	data := make(stable.Bounds)
	for _, name := range names {
		data[name] = w.bounds[name]
	}
	if err := stable.Read(ctx, cl, data, w.addCopy); err != nil {
		return err
	}
	return stable.Read(ctx, cl, trail, w.addEvent)
}

func (w *world) findTopics(ctx context.Context, adm *kadm.Client) error {
	meta, err := adm.Metadata(ctx)
	if err != nil {
		return fmt.Errorf("list the topics: %w", err)
	}
	w.clusterID = w.spec.ClusterID
	if w.clusterID == "" {
		w.clusterID = meta.Cluster
	}
	w.byName = make(map[string]int32)
	for _, detail := range meta.Topics.Sorted() {
		kind, ok := w.kindOf(detail.Topic)
		if !ok {
			continue
		}
		w.byName[detail.Topic] = int32(len(w.topics))
		w.topics = append(w.topics, topic{name: detail.Topic, kind: kind, id: detail.ID, partitions: detail.Partitions.Numbers()})
	}
	for _, name := range append(slices.Clone(w.spec.Sources), w.spec.Poison) {
		if _, ok := w.byName[name]; !ok {
			return fmt.Errorf("topic %s does not exist", name)
		}
	}
	return nil
}

func (w *world) kindOf(name string) (deadletter.Kind, bool) {
	if slices.Contains(w.spec.Sources, name) {
		return deadletter.Source, true
	}
	if name == w.spec.Poison {
		return deadletter.Poison, true
	}
	if delay, ok := strings.CutPrefix(name, w.spec.RetryPrefix); ok {
		_, err := policy.ParseDelay(delay)
		return deadletter.Tier, err == nil
	}
	target, ok := strings.CutPrefix(name, w.spec.HoldPrefix)
	return deadletter.Hold, ok && w.spec.HoldPrefix != "" && target != ""
}

// readProgress reads the group's commits, once no transaction is about to change them.
func (w *world) readProgress(ctx context.Context, cl *kgo.Client) error {
	w.committed = make(map[place]committed)
	if w.spec.Group == "" {
		return nil
	}
	commits, err := w.fetchCommits(ctx, cl)
	if errors.Is(err, kerr.GroupIDNotFound) {
		return nil // nobody has joined yet
	}
	if err != nil {
		return fmt.Errorf("read the progress of group %s: %w", w.spec.Group, err)
	}
	for _, r := range commits {
		c := committed{Progress: progress.Progress{Low: r.offset}}
		if r.metadata != "" {
			p, err := progress.Decode(r.offset, r.metadata)
			if err != nil {
				w.report.fault(ownership, "progress of %s/%d: %v", w.topics[r.place.topic].name, r.place.partition, err)
			} else {
				c = committed{Progress: p, known: true}
			}
		}
		w.committed[r.place] = c
		for _, h := range c.Holes {
			w.report.Holes += h.To - h.From
		}
	}
	return nil
}

// commit is what the group has committed of a partition.
type commit struct {
	place    place // offset 0
	offset   int64
	metadata string
}

// fetchCommits reads the group's commits, and waits for those of transactions
// that have just ended. It names the partitions: a request for all of them leaves
// out a partition whose first commit is on its way.
func (w *world) fetchCommits(ctx context.Context, cl *kgo.Client) ([]commit, error) {
	for {
		commits, err := w.fetchCommitsOnce(ctx, cl)
		if err == nil || !kerr.IsRetriable(err) {
			return commits, err
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (w *world) fetchCommitsOnce(ctx context.Context, cl *kgo.Client) ([]commit, error) {
	req := kmsg.NewPtrOffsetFetchRequest()
	req.RequireStable = true
	group := kmsg.NewOffsetFetchRequestGroup()
	group.Group = w.spec.Group
	byID := make(map[[16]byte]int32)
	for i, t := range w.topics {
		topic := kmsg.NewOffsetFetchRequestGroupTopic()
		topic.Topic, topic.TopicID, topic.Partitions = t.name, t.id, t.partitions
		byID[t.id] = int32(i)
		group.Topics = append(group.Topics, topic)
	}
	req.Groups = append(req.Groups, group)
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return nil, err
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return nil, err
	}
	var commits []commit
	for _, g := range resp.Groups {
		if err := kerr.ErrorForCode(g.ErrorCode); err != nil {
			return nil, err
		}
		for _, topic := range g.Topics {
			t, ok := w.byName[topic.Topic]
			if !ok { // newer versions of the answer carry the id only
				t = byID[topic.TopicID]
			}
			for _, p := range topic.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					return nil, fmt.Errorf("%s/%d: %w", w.topics[t].name, p.Partition, err)
				}
				if p.Offset < 0 {
					continue
				}
				c := commit{place: place{topic: t, partition: p.Partition}, offset: p.Offset}
				if p.Metadata != nil {
					c.metadata = *p.Metadata
				}
				commits = append(commits, c)
			}
		}
	}
	return commits, nil
}

func (w *world) addCopy(r *kgo.Record) {
	t := w.byName[r.Topic]
	topic := w.topics[t]
	p := place{t, r.Partition, r.Offset}
	headers := make([]deadletter.Header, len(r.Headers))
	for i, h := range r.Headers {
		headers[i] = deadletter.Header{Key: h.Key, Value: h.Value}
	}
	rec, malformed := deadletter.Read(deadletter.Message{
		Place:     deadletter.Place{Topic: r.Topic, TopicID: topic.id, Partition: r.Partition, Offset: r.Offset},
		Timestamp: r.Timestamp.UnixMilli(),
		Key:       r.Key, Value: r.Value, Headers: headers,
	}, deadletter.ReadOptions{
		Kind: topic.kind, MaxWait: math.MaxInt64, Now: w.now, ClusterID: w.clusterID,
	})
	c := &copied{
		kind: topic.kind, contents: w.hash(&rec), size: size(r, topic.kind),
		attempt: rec.Attempt, snoozes: rec.Snoozes, notBefore: rec.NotBefore,
		masked: rec.Masked, malformed: malformed != nil, reason: rec.Reason,
	}
	var ok bool
	if c.id, ok = parseID(rec.ID); !ok {
		w.report.fault(conservation, "record at %s has the id %q, not 32 hex digits", w.at(p), rec.ID)
		return
	}
	w.copies[p] = c
	l := w.life(c.id)
	// A record in a tier that nobody gave an identity arrived there.
	if topic.kind == deadletter.Source || slices.Contains(rec.Notes, deadletter.NoteIdentityMissing) {
		l.origin, l.rooted, l.visible = p, true, true
		l.contents, l.size = c.contents, c.size
	} else {
		l.copies = append(l.copies, p)
		if origin, ok := w.parsePlace(rec.Origin); ok && !l.rooted {
			l.origin, l.rooted = origin, true
		}
	}
	if topic.kind == deadletter.Source {
		return
	}
	for _, h := range r.Headers {
		if strings.HasPrefix(h.Key, deadletter.HeaderPrefix) && h.Key != deadletter.HeaderError {
			w.checkSecrets(r, h.Value)
		}
	}
}

func (w *world) life(i id) *life {
	l := w.lives[i]
	if l == nil {
		l = new(life)
		w.lives[i] = l
	}
	return l
}

func (w *world) hash(r *deadletter.Record) contents {
	var h maphash.Hash
	bytesOf := func(b []byte) {
		n := uint32(len(b))
		if b == nil {
			n = math.MaxUint32 // null is not empty
		}
		maphash.WriteComparable(&h, n)
		h.Write(b)
	}
	sum := func(write func()) uint64 {
		h.SetSeed(w.seed)
		write()
		return h.Sum64()
	}
	return contents{
		key:   sum(func() { bytesOf(r.Key) }),
		value: sum(func() { bytesOf(r.Value) }),
		headers: sum(func() {
			for _, header := range r.Foreign {
				bytesOf([]byte(header.Key))
				bytesOf(header.Value)
			}
		}),
	}
}

// size is what a record weighs on the wire, without framing. Headers of ours on
// a source topic do not count: they are dropped.
func size(r *kgo.Record, kind deadletter.Kind) int {
	n := len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		if kind != deadletter.Source || !strings.HasPrefix(h.Key, deadletter.HeaderPrefix) {
			n += len(h.Key) + len(h.Value)
		}
	}
	return n
}

func (w *world) addEvent(r *kgo.Record) {
	where := fmt.Sprintf("event at %s/%d/%d", r.Topic, r.Partition, r.Offset)
	w.checkSecrets(r, r.Key, r.Value)
	e, err := audit.Parse(r.Value)
	if err != nil {
		w.report.fault(trail, "%s: %v", where, err)
		return
	}
	if string(r.Key) != e.RecordID {
		w.report.fault(trail, "%s: its key is not its recon_id %s", where, e.RecordID)
	}
	if topic, partition, ok := audit.OriginTopic(e.Origin); ok {
		if want := audit.Partition(topic, partition, int32(len(w.bounds[w.spec.Audit]))); r.Partition != want {
			w.report.fault(trail, "%s: its origin %s belongs on partition %d", where, e.Origin, want)
		}
	}
	t, known := w.byName[e.Input.Topic]
	p := place{t, e.Input.Partition, e.Input.Offset}
	if known && w.topics[t].kind != deadletter.Poison {
		part := place{topic: t, partition: e.Input.Partition}
		w.seqs[part] = append(w.seqs[part], e.Seq)
	}
	if e.Type == audit.Escalated {
		w.report.Escalated++
		w.escalated[p]++
		if c := w.copies[p]; !known || c == nil || c.id.String() != e.RecordID {
			w.report.fault(conservation, "%s: escalated, but %s is not a poison copy of record %s", where, e.Input, e.RecordID)
		}
		return
	}
	i, ok := parseID(e.RecordID)
	if !ok { // expired and never read: it has no name
		w.expire(p, known, where)
		return
	}
	l := w.life(i)
	if !l.rooted {
		if l.origin, l.rooted = w.parsePlace(e.Origin); !l.rooted {
			w.report.fault(trail, "%s: record %s comes from %q, which is no source", where, i, e.Origin)
		}
	}
	l.events = append(l.events, event{kind: e.Type, input: p, known: known, attempt: e.Attempt, reason: e.Reason})
}

// expire takes note of the end of a record that was gone before it could be read.
// On a source its id follows from its place; a tier's copy stays a stranger.
func (w *world) expire(p place, known bool, where string) {
	if !known {
		w.report.fault(trail, "%s: its input is on a topic that is not checked", where)
		return
	}
	t := w.topics[p.topic]
	if t.kind != deadletter.Source {
		w.report.Expired++
		w.effectOnGone(p)
		w.strangers++
		return
	}
	i, _ := parseID(deadletter.Identity(w.clusterID, deadletter.Place{Topic: t.name, TopicID: t.id, Partition: p.partition, Offset: p.offset}))
	l := w.life(i)
	l.origin, l.rooted = p, true
	l.events = append(l.events, event{kind: audit.Expired, input: p, known: true})
}

func (w *world) doubled(format string, args ...any) {
	w.report.Doubled++
	if !w.spec.AtLeastOnce {
		w.report.fault(conservation, format, args...)
	}
}

func (w *world) lost(format string, args ...any) {
	w.report.Lost++
	w.report.fault(conservation, format, args...)
}

func (w *world) checkSecrets(r *kgo.Record, texts ...[]byte) {
	for i, secret := range w.spec.Secrets {
		for _, text := range texts {
			if bytes.Contains(text, []byte(secret)) {
				// A fault is printed: it does not say the secret.
				w.report.fault(secrecy, "key, value or a header of ours of %s/%d/%d contains secret number %d of the spec", r.Topic, r.Partition, r.Offset, i)
			}
		}
	}
}

// parsePlace reads topic/partition/offset on a topic that is checked.
func (w *world) parsePlace(s string) (place, bool) {
	topic, partition, ok := audit.OriginTopic(s)
	if !ok {
		return place{}, false
	}
	t, ok := w.byName[topic]
	offset, err := strconv.ParseInt(s[strings.LastIndexByte(s, '/')+1:], 10, 64)
	return place{t, partition, offset}, ok && err == nil
}
