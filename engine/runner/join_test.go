package runner

import (
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"tandem/engine/comm"
	"tandem/engine/executor"
	"tandem/test/ports"
)

// What differs between the processes of an instance is told by the key that its
// user wrote, and the process of rank 0 says at once whom it did not take.
func TestOtherSettingsAreNamed(t *testing.T) {
	addr := ports.Address(t)
	options := func(batch int) comm.Config {
		o := &LoadOptions{Ranks: 2, AttentionDP: true}
		c := Config{Core: executor.DefaultConfig(), Info: Info{Model: "m", Fingerprint: "f"}}
		c.Core.MaxBatch, c.Core.Blocks, c.Core.Endpoint = batch, batch, addr
		g := o.group(c)
		g.JoinTimeout = 2 * time.Second
		return g
	}
	var log strings.Builder
	root := make(chan error, 1)
	go func() {
		_, err := connect(t.Context(), addr, comm.Span{}, options(8), slog.New(slog.NewTextHandler(&log, nil)))
		root <- err
	}()
	_, err := connect(t.Context(), addr, comm.Span{First: 1, Last: 1}, options(4), slog.New(slog.DiscardHandler))
	const want = "rank 1 has max_batch_size 4, rank 0 has 8"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the process of rank 1: %v", err)
	}
	if err := <-root; err == nil || !strings.Contains(err.Error(), "rank 1 did not join") || !strings.Contains(err.Error(), want) {
		t.Errorf("the process of rank 0: %v", err)
	}
	if !strings.Contains(log.String(), want) || !strings.Contains(log.String(), "missing=[1]") {
		t.Errorf("the log: %s", log.String())
	}
}

func TestRankGroupAddressInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = connect(t.Context(), l.Addr().String(), comm.Span{}, comm.Config{Size: 2}, slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "--rank-group "+l.Addr().String()) {
		t.Errorf("%v", err)
	}
}
