package wire

import (
	"net"
	"testing"
)

func TestOwnAddress(t *testing.T) {
	var addrs []net.Addr
	for _, text := range []string{"127.0.0.1/8", "fe80::1/64", "10.1.2.3/24", "10.9.9.9/24"} {
		ip, n, err := net.ParseCIDR(text)
		if err != nil {
			t.Fatal(err)
		}
		n.IP = ip
		addrs = append(addrs, n)
	}
	v6 := &net.IPNet{IP: net.ParseIP("2001:db8::1"), Mask: net.CIDRMask(64, 128)}
	for _, c := range []struct {
		name  string
		addrs []net.Addr
		v4    bool
		want  string
	}{
		{"0.0.0.0", append(addrs[:4:4], v6), true, "10.1.2.3"},
		{"0.0.0.0 on an IPv6 host", []net.Addr{addrs[0], v6}, true, "127.0.0.1"},
		{":: has IPv6", append(addrs[:4:4], v6), false, "2001:db8::1"},
		{":: without global IPv6", addrs, false, "10.1.2.3"},
		{"nothing", nil, false, "127.0.0.1"},
	} {
		if got := ownAddress(c.addrs, c.v4); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
