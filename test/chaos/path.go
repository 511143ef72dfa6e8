package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"github.com/recon-dlq/recon-dlq/test/brokers"
)

// path is one worker's way to the cluster: a proxy to each node's door. The
// doors advertise the proxies, so that the worker has no other way.
type path struct {
	proxies []*toxiproxy.Proxy // by node

	mu     sync.Mutex
	closed bool         // all of them; guarded by mu
	away   map[int]bool // nodes that are; guarded by mu
}

func newPath(doors []brokers.Door) (*path, error) {
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	p := &path{away: make(map[int]bool)}
	for _, door := range doors {
		p.proxies = append(p.proxies, toxiproxy.NewProxy(server, door.Proxy, door.Proxy, door.Listen))
	}
	if err := p.open(); err != nil {
		p.shut()
		return nil, err
	}
	return p, nil
}

// open lets connections through.
func (p *path) open() error { return p.set(func() { p.closed = false }) }

// shut closes all connections and refuses new ones.
func (p *path) shut() { _ = p.set(func() { p.closed = true }) } // closing does not fail

// node says whether a node, from 0, is there. Where it is not, its proxy refuses
// connections as the node would: it would else accept them and close them.
func (p *path) node(i int, there bool) error { return p.set(func() { p.away[i] = !there }) }

func (p *path) set(change func()) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	for i, proxy := range p.proxies {
		switch open := !p.closed && !p.away[i]; {
		case open && !proxy.Enabled:
			if err := proxy.Start(); err != nil {
				return fmt.Errorf("open a path to the cluster at %s: %w", proxy.Listen, err)
			}
		case !open:
			proxy.Stop()
		}
	}
	return nil
}

// with poisons the path with a toxic for the length of pause: requests go
// upstream, answers downstream.
func (p *path) with(ctx context.Context, toxic string, requests, answers bool, pause time.Duration) error {
	var streams []string
	if requests {
		streams = append(streams, "upstream")
	}
	if answers {
		streams = append(streams, "downstream")
	}
	err := p.each(streams, func(proxy *toxiproxy.Proxy, stream string) error {
		config, err := json.Marshal(map[string]string{"name": stream, "type": toxic, "stream": stream})
		if err != nil {
			return err
		}
		_, err = proxy.Toxics.AddToxicJson(bytes.NewReader(config))
		return err
	})
	err = errors.Join(err, rest(ctx, pause))
	return errors.Join(err, p.each(streams, func(proxy *toxiproxy.Proxy, stream string) error {
		return proxy.Toxics.RemoveToxic(context.WithoutCancel(ctx), stream)
	}))
}

func (p *path) each(streams []string, f func(proxy *toxiproxy.Proxy, stream string) error) error {
	for _, proxy := range p.proxies {
		for _, stream := range streams {
			if err := f(proxy, stream); err != nil {
				return fmt.Errorf("%s of the path at %s: %w", stream, proxy.Listen, err)
			}
		}
	}
	return nil
}
