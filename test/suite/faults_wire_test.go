package suite

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// wire is a worker's network. It can be cut, which is what the rest of the
// world sees of a killed worker, and healed, which no killed worker can: so a
// worker that comes back from the dead can be watched.
//
// It also knows requests from answers, so that an answer can be lost after the
// broker has acted, on any broker.
type wire struct {
	mu    sync.Mutex
	down  bool
	conns map[*wireConn]struct{}
	rule  func(kmsg.Key) fate // nil: everything passes
}

// fate is what becomes of a request.
type fate int

const (
	pass        fate = iota
	loseRequest      // the connection breaks before the broker gets it
	loseAnswer       // the connection breaks after the broker has acted
	cutBefore        // the network breaks before the broker gets it, until it is healed
	cutAfter         // the network breaks after the broker has acted, until it is healed
	garbleEnd        // the answer to EndTxn says UNKNOWN_SERVER_ERROR whatever it was
)

func newWire() *wire { return &wire{conns: map[*wireConn]struct{}{}} }

func (w *wire) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	w.mu.Lock()
	down := w.down
	w.mu.Unlock()
	if down {
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c := &wireConn{Conn: conn, w: w, fates: map[uint32]answer{}}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.down {
		conn.Close()
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
	}
	w.conns[c] = struct{}{}
	return c, nil
}

// cut breaks all connections and lets no new one through.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = true
	for c := range w.conns {
		c.Conn.Close()
	}
	clear(w.conns)
}

func (w *wire) heal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = false
}

// treat decides the fate of requests from now on.
func (w *wire) treat(rule func(kmsg.Key) fate) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rule = rule
}

// times gives the first n requests with key the fate f, and counts them on the channel.
func times(n int, key kmsg.Key, f fate) (func(kmsg.Key) fate, <-chan struct{}) {
	hits := make(chan struct{}, n)
	return func(k kmsg.Key) fate { // called under wire.mu
		if k != key || n == 0 {
			return pass
		}
		n--
		hits <- struct{}{}
		return f
	}, hits
}

type answer struct {
	fate    fate
	version uint16
}

type wireConn struct {
	net.Conn
	w *wire

	mu    sync.Mutex
	fates map[uint32]answer // by correlation id

	in []byte // of an answer, not yet handed out; the reader's own
}

// Write sends one request: the client writes each with one call.
func (c *wireConn) Write(b []byte) (int, error) {
	if len(b) < 12 {
		return c.Conn.Write(b)
	}
	key, version, correlation := kmsg.Key(binary.BigEndian.Uint16(b[4:])), binary.BigEndian.Uint16(b[6:]), binary.BigEndian.Uint32(b[8:])
	c.w.mu.Lock()
	f := pass
	if c.w.rule != nil {
		f = c.w.rule(key)
	}
	c.w.mu.Unlock()
	switch f {
	case pass:
	case loseRequest:
		c.Close()
		return 0, &net.OpError{Op: "write", Err: syscall.ECONNRESET}
	case cutBefore:
		c.w.cut()
		return 0, &net.OpError{Op: "write", Err: syscall.ECONNRESET}
	case loseAnswer, cutAfter, garbleEnd:
		c.mu.Lock()
		c.fates[correlation] = answer{f, version}
		c.mu.Unlock()
	}
	return c.Conn.Write(b)
}

// Read hands out whole answers, those that are to be lost excepted.
func (c *wireConn) Read(b []byte) (int, error) {
	if len(c.in) == 0 {
		if err := c.next(); err != nil {
			return 0, err
		}
	}
	n := copy(b, c.in)
	c.in = c.in[n:]
	return n, nil
}

func (c *wireConn) next() error {
	var head [4]byte
	if _, err := io.ReadFull(c.Conn, head[:]); err != nil {
		return err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size < 4 || size > 200<<20 {
		return errors.New("not an answer of a Kafka broker")
	}
	frame := make([]byte, 4+size)
	copy(frame, head[:])
	if _, err := io.ReadFull(c.Conn, frame[4:]); err != nil {
		return err
	}
	correlation := binary.BigEndian.Uint32(frame[4:])
	c.mu.Lock()
	a := c.fates[correlation]
	delete(c.fates, correlation)
	c.mu.Unlock()
	switch a.fate {
	case loseAnswer:
		c.Close()
		return &net.OpError{Op: "read", Err: syscall.ECONNRESET}
	case cutAfter:
		c.w.cut()
		return &net.OpError{Op: "read", Err: syscall.ECONNRESET}
	case garbleEnd:
		at := 8 + 4 // correlation id, throttle time
		if a.version >= 3 {
			at++ // tags of the flexible header
		}
		binary.BigEndian.PutUint16(frame[at:], 0xffff) // UNKNOWN_SERVER_ERROR is -1
	case pass, loseRequest, cutBefore:
	}
	c.in = frame
	return nil
}

func (c *wireConn) Close() error {
	c.w.mu.Lock()
	delete(c.w.conns, c)
	c.w.mu.Unlock()
	return c.Conn.Close()
}
