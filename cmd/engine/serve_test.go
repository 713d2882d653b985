package main

import (
	"net"
	"testing"
)

func TestWireHost(t *testing.T) {
	v4 := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8001}
	all := &net.TCPAddr{IP: net.IPv6unspecified, Port: 8001} // what a listener on 0.0.0.0 calls itself
	for _, c := range []struct {
		host string
		at   net.Addr
		want string
	}{
		{"localhost", v4, "127.0.0.1"},
		{"0.0.0.0", all, "0.0.0.0"},
		{"", all, "0.0.0.0"},
		{"::", all, "::"},
	} {
		if got := wireHost(c.host, c.at); got != c.want {
			t.Errorf("%q: %q, want %q", c.host, got, c.want)
		}
	}
}
