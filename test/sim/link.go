package sim

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// link is one worker's network to the brokers. It can be cut and healed, and
// lose a request or its answer.
type link struct {
	dial func(ctx context.Context, network, host string) (net.Conn, error)
	die  func() // kills the worker
	k    *kafka // draws the fate of aborts

	mu    sync.Mutex
	down  bool
	conns map[*conn]bool
	loss  []loss
}

// loss loses the next request of a kind: on its way out, or, after the broker
// has acted on it, its answer. A delay lets the answer come late instead.
type loss struct {
	key    int16
	answer bool
	delay  time.Duration
	kills  bool          // the worker dies of it: at this step of its work and at no other
	lasts  time.Duration // from the first that is lost: so are those that follow; 0: only one is

	until time.Time
}

// latency is how long an answer travels. Without any, a fetch that is answered
// at once and empty would be repeated for ever at the same moment.
const latency = 200 * time.Microsecond

var errDown = errors.New("the network is down")

func (l *link) Dial(ctx context.Context, network, host string) (net.Conn, error) {
	l.mu.Lock()
	down := l.down
	l.mu.Unlock()
	if down {
		return nil, errDown
	}
	c, err := l.dial(ctx, network, host)
	if err != nil {
		return nil, err
	}
	wrapped := &conn{Conn: c, l: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down {
		c.Close()
		return nil, errDown
	}
	l.conns[wrapped] = true
	return wrapped, nil
}

// set cuts the link, with all its connections, or heals it.
func (l *link) set(down bool) {
	l.mu.Lock()
	l.down = down
	conns := l.conns
	l.conns = map[*conn]bool{}
	l.mu.Unlock()
	if down {
		for c := range conns {
			c.Close()
		}
		return
	}
	l.mu.Lock()
	for c := range conns {
		l.conns[c] = true
	}
	l.mu.Unlock()
}

// reset closes all connections; new ones are made at once.
func (l *link) reset() {
	l.set(true)
	l.set(false)
}

func (l *link) lose(x loss) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.loss = append(l.loss, x)
}

func (l *link) take(key int16) (loss, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.loss {
		x := &l.loss[i]
		if x.key != key {
			continue
		}
		if x.lasts > 0 && x.until.IsZero() {
			x.until = time.Now().Add(x.lasts)
		}
		lost := *x
		if !time.Now().Before(x.until) {
			l.loss = append(l.loss[:i], l.loss[i+1:]...)
		}
		return lost, true
	}
	return loss{}, false
}

// conn watches the requests that pass: each is written in one piece.
type conn struct {
	net.Conn
	l *link

	mu    sync.Mutex
	mute  bool          // the next answer is lost, and the connection with it
	kills bool          // and the worker
	delay time.Duration // before the next answer
	dead  bool          // what is written is never read
}

func (c *conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	dead := c.dead
	c.mu.Unlock()
	if dead {
		return len(p), nil
	}
	if r, ok := endOf(p); ok && !r.Commit {
		switch c.l.k.aborts(r.TransactionalID, r.ProducerEpoch) {
		case arrives:
		case breaks:
			c.Close()
			return 0, io.ErrClosedPipe
		case vanishes:
			c.mu.Lock()
			c.dead = true
			c.mu.Unlock()
			return len(p), nil
		}
	}
	if len(p) >= 6 {
		if x, ok := c.l.take(int16(binary.BigEndian.Uint16(p[4:]))); ok {
			switch {
			case x.delay > 0:
				c.mu.Lock()
				c.delay = x.delay
				c.mu.Unlock()
			case x.answer:
				c.mu.Lock()
				c.mute, c.kills = true, x.kills
				c.mu.Unlock()
			default:
				c.Close()
				if x.kills {
					c.l.die()
				}
				return 0, io.ErrClosedPipe
			}
		}
	}
	return c.Conn.Write(p)
}

// endOf reads a request to end a transaction.
func endOf(p []byte) (*kmsg.EndTxnRequest, bool) {
	const fixed = 4 + 2 + 2 + 4 + 2 // size, key, version, correlation id, length of the client's id
	if len(p) < fixed || kmsg.Key(binary.BigEndian.Uint16(p[4:])) != kmsg.EndTxn {
		return nil, false
	}
	r := kmsg.NewPtrEndTxnRequest()
	r.SetVersion(int16(binary.BigEndian.Uint16(p[6:])))
	body := fixed + max(0, int(int16(binary.BigEndian.Uint16(p[fixed-2:]))))
	if r.IsFlexible() {
		body++ // no tags
	}
	return r, body <= len(p) && r.ReadFrom(p[body:]) == nil
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	mute, kills, delay := c.mute, c.kills, c.delay
	c.mute, c.kills, c.delay = false, false, 0
	c.mu.Unlock()
	time.Sleep(latency + delay) //nolint:forbidigo // in virtual time
	if mute && err == nil {
		c.Close()
		if kills {
			c.l.die()
		}
		return 0, io.EOF
	}
	return n, err
}
