package remedy

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

func TestLinkLocalAndMetadataAddressesAreKnown(t *testing.T) {
	for address, want := range map[string]bool{
		"169.254.169.254":        true,
		"169.254.0.1":            true,
		"169.254.170.2":          true,
		"::ffff:169.254.169.254": true,
		"64:ff9b::a9fe:a9fe":     true,
		"fe80::1":                true,
		"fe80::1%eth0":           true,
		"febf::1":                true,
		"fd00:ec2::254":          true,
		"fd00:ec2::23":           true,
		"fd20:ce::254":           true,
		"100.100.100.200":        true,
		"168.63.129.16":          true,
		"192.0.0.192":            true,
		"127.0.0.1":              false,
		"::1":                    false,
		"10.0.0.1":               false,
		"169.253.255.255":        false,
		"169.255.0.0":            false,
		"100.100.100.201":        false,
		"fec0::1":                false,
		"fd00:ec3::254":          false,
		"64:ff9b::a00:1":         false,
		"2001:db8::1":            false,
	} {
		if got := isLinkLocal(netip.MustParseAddr(address)); got != want {
			t.Errorf("%s: %t, want %t", address, got, want)
		}
	}
}

// nameServer answers every question for an IPv4 address with address.
func nameServer(t *testing.T, address [4]byte) *net.Resolver {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for b := make([]byte, 512); ; {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			end := 12 // behind the header: the name, its type and class
			for end < n && b[end] != 0 {
				end += 1 + int(b[end])
			}
			end += 5
			answer := append([]byte{b[0], b[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, b[12:end]...)
			if b[end-3] == 1 { // type A
				answer[7] = 1
				answer = append(answer, 0xC0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4)
				answer = append(answer, address[:]...)
			}
			_, _ = c.WriteTo(answer, from)
		}
	}()
	t.Cleanup(func() {
		_ = c.Close()
		<-done
	})
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", c.LocalAddr().String())
	}}
}

func TestANameThatIsLinkLocalIsRefusedBeforeAnythingIsSent(t *testing.T) {
	d := newDialer(false)
	d.Resolver = nameServer(t, [4]byte{169, 254, 169, 254})
	h := target(t, HTTPOptions{URL: "http://ledger.example/"})
	h.transport.DialContext = d.DialContext
	o := h.Remediate(t.Context(), record())
	if o.Class != deadletter.Unavailable || o.Cause != CauseLinkLocal || !strings.Contains(o.Message, "allow_link_local") {
		t.Errorf("got %+v", o)
	}
}

func TestANameOfANeighbourIsCalled(t *testing.T) {
	url := served(t, func(http.ResponseWriter, *http.Request) {})
	d := newDialer(false)
	d.Resolver = nameServer(t, [4]byte{127, 0, 0, 1})
	h := target(t, HTTPOptions{URL: strings.Replace(url, "127.0.0.1", "ledger.example", 1)})
	h.transport.DialContext = d.DialContext
	if o := h.Remediate(t.Context(), record()); o.Class != deadletter.Resolved {
		t.Errorf("got %+v", o)
	}
}

func TestLinkLocalAddressesCanBeAllowed(t *testing.T) {
	if d := newDialer(true); d.Control != nil || d.ControlContext != nil {
		t.Error("an allowed address is still looked at")
	}
	if _, err := NewHTTP(HTTPOptions{URL: "http://169.254.1.1/", Timeout: patience, Source: "w", AllowLinkLocal: true}); err != nil {
		t.Error(err)
	}
	if _, err := NewHTTP(HTTPOptions{URL: "http://169.254.1.1/", Unix: "/run/x.sock", Timeout: patience, Source: "w"}); err != nil {
		t.Errorf("behind a unix socket it is a name only: %v", err)
	}
}
