package remedy

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"
)

// newDialer makes the dialer of a target. It refuses link-local addresses and those
// of cloud metadata services, which give credentials away, unless they are allowed.
// It looks at the address that is about to be connected to: a name's, too.
func newDialer(allowLinkLocal bool) *net.Dialer {
	d := &net.Dialer{KeepAlive: 15 * time.Second}
	if !allowLinkLocal {
		d.ControlContext = func(_ context.Context, _, address string, _ syscall.RawConn) error {
			if a, err := netip.ParseAddrPort(address); err == nil && isLinkLocal(a.Addr()) {
				return errLinkLocal
			}
			return nil
		}
	}
	return d
}

var errLinkLocal = errors.New("the address is link-local or of a metadata service: it is refused unless allow_link_local is set")

// metadata are the addresses of metadata services that are not link-local.
var metadata = []netip.Prefix{
	netip.MustParsePrefix("fd00:ec2::/32"),      // AWS: metadata, credentials of pods, name servers
	netip.MustParsePrefix("fd20:ce::254/128"),   // Google Cloud
	netip.MustParsePrefix("100.100.100.200/32"), // Alibaba Cloud
	netip.MustParsePrefix("168.63.129.16/32"),   // Azure's host
	netip.MustParsePrefix("192.0.0.192/32"),     // Oracle Cloud, classic
}

// nat64 is the well-known prefix of RFC 6052: an IPv4 address is in its last 4 bytes.
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// isLinkLocal says whether a is link-local (RFC 3927, RFC 4291) or of a metadata service.
func isLinkLocal(a netip.Addr) bool {
	a = a.WithZone("").Unmap()
	if nat64.Contains(a) {
		b := a.As16()
		a = netip.AddrFrom4([4]byte(b[12:]))
	}
	if a.IsLinkLocalUnicast() {
		return true
	}
	for _, p := range metadata {
		if p.Contains(a) {
			return true
		}
	}
	return false
}
