// Command server runs one etcd server for tests: server DIR CLIENT_PORT [CERT KEY CA]. With the files clients come by TLS and
// show a certificate of CA. It prints the client address when it takes requests
// and ends when its standard input does. It is a module of its own, so that etcd's server stays out of the programs.
package main

import (
	"fmt"
	"io"
	"net/url"
	"os"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 3 && len(os.Args) != 6 {
		return fmt.Errorf("want: server DIR CLIENT_PORT [CERT KEY CA] (port 0 = any free one)")
	}
	cfg := embed.NewConfig()
	cfg.Dir, cfg.LogLevel, cfg.LogOutputs = os.Args[1], "fatal", []string{"stderr"}
	client := url.URL{Scheme: "http", Host: "127.0.0.1:" + os.Args[2]}
	if len(os.Args) == 6 {
		client.Scheme = "https"
		cfg.ClientTLSInfo = transport.TLSInfo{CertFile: os.Args[3], KeyFile: os.Args[4], TrustedCAFile: os.Args[5], ClientCertAuth: true}
	}
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.InitialCluster = cfg.Name + "=" + peer.String()
	cfg.TickMs, cfg.ElectionMs = 20, 200 // leases can be as short as the tests want them
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	defer server.Close()
	select {
	case <-server.Server.ReadyNotify():
	case err := <-server.Err():
		return fmt.Errorf("serve: %w", err)
	case <-time.After(30 * time.Second):
		return fmt.Errorf("not ready after 30 s")
	}
	fmt.Println(server.Clients[0].Addr())
	_, _ = io.Copy(io.Discard, os.Stdin)
	return nil
}
