package comm

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"tandem/test/ports"
)

func TestLeavesMayComeFirst(t *testing.T) {
	addr := ports.Address(t)
	cfg := Config{Size: 4, Key: []byte("k")}
	var wg sync.WaitGroup
	groups, errs := make([]*Group, 3), make([]error, 3)
	tried := make(chan struct{}, 100)
	for i, s := range []Span{{3, 3}, {1, 2}} {
		wg.Go(func() {
			own := cfg
			own.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
				defer func() { tried <- struct{}{} }()
				return new(net.Dialer).DialContext(ctx, "tcp", addr)
			}
			groups[i+1], errs[i+1] = Join(context.Background(), addr, s, own)
		})
	}
	<-tried
	<-tried
	lis, err := Listen(addr, Span{0, 0}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	groups[0], errs[0] = lis.Accept(t.Context())
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	w := &world{groups: groups}
	defer w.close()
	w.ranks = []Comm{groups[0].Rank(0), groups[2].Rank(1), groups[2].Rank(2), groups[1].Rank(3)}
	w.all(t, func(c Comm) error { return c.Barrier(t.Context()) })
}

func TestRefusedJoins(t *testing.T) {
	root := Config{Size: 4, ConfigEpoch: 3, Key: []byte("right"), JoinTimeout: 20 * time.Second}
	lis, err := Listen("127.0.0.1:0", Span{0, 0}, root)
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	ctx, leave := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() {
		_, err := Join(ctx, lis.Addr(), Span{2, 2}, root)
		first <- err
	}()
	for lis.joinedRanks() < 1 { // until the first one is in
		time.Sleep(time.Millisecond)
	}
	for _, tc := range []struct {
		name  string
		ranks Span
		odd   func(c *Config)
		want  string
	}{
		{"version", Span{1, 1}, func(c *Config) { c.version = 9 }, "rank 1 speaks protocol version 9, the root 2"},
		{"size", Span{1, 1}, func(c *Config) { c.Size = 8 }, "rank 1 expects 8 ranks in all, the root 4"},
		{"config epoch", Span{1, 1}, func(c *Config) { c.ConfigEpoch = 4 }, "rank 1 has config epoch 4, the root 3"},
		{"key", Span{1, 1}, func(c *Config) { c.Key = []byte("wrong") }, "another internal_request_auth_key"},
		{"no key", Span{1, 1}, func(c *Config) { c.Key = nil }, "another internal_request_auth_key"},
		{"taken", Span{1, 3}, func(*Config) {}, "ranks 1-3 are asked for, but another process has joined with rank 2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := root
			tc.odd(&cfg)
			_, err := Join(t.Context(), lis.Addr(), tc.ranks, cfg)
			if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
	leave()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("first leaf: %v", err)
	}
}

func (l *Listener) joinedRanks() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.joined {
		n += c.span.Len()
	}
	return n
}

func TestKeyOfTheLeafOnly(t *testing.T) {
	lis, err := Listen("127.0.0.1:0", Span{0, 0}, Config{Size: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	_, err = Join(t.Context(), lis.Addr(), Span{1, 1}, Config{Size: 2, Key: []byte("k")})
	if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "the root has none") {
		t.Error(err)
	}
}

func TestLateRanksAreNamed(t *testing.T) {
	t.Parallel() // mostly waits
	lis, err := Listen("127.0.0.1:0", Span{0, 0}, Config{Size: 4, JoinTimeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	joined := make(chan error, 1)
	go func() {
		_, err := Join(context.Background(), lis.Addr(), Span{2, 2}, Config{Size: 4})
		joined <- err
	}()
	if _, err := Join(t.Context(), lis.Addr(), Span{1, 1}, Config{Size: 5}); !errors.Is(err, ErrRefused) {
		t.Error(err)
	}
	_, err = lis.Accept(t.Context())
	for _, want := range []string{"ranks 1, 3 did not join within 2s", "refused: rank 1 expects 5 ranks"} {
		if !errors.Is(err, ErrTimeout) || !strings.Contains(err.Error(), want) {
			t.Errorf("root: %v, want %q", err, want)
		}
	}
	if err := <-joined; !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "ranks 1, 3 did not join") {
		t.Errorf("leaf: %v", err)
	}
}

func TestRootThatNeverComes(t *testing.T) {
	t.Parallel() // mostly waits
	addr := ports.Address(t)
	_, err := Join(t.Context(), addr, Span{1, 1}, Config{Size: 2, JoinTimeout: 300 * time.Millisecond})
	if !errors.Is(err, ErrTimeout) || !strings.Contains(err.Error(), "rank 1 join "+addr) {
		t.Error(err)
	}
}

// TestStrangers has things connect that are no leaves.
func TestStrangers(t *testing.T) {
	t.Parallel() // mostly waits
	cfg := Config{Size: 2, JoinTimeout: 20 * time.Second}
	lis, err := Listen("127.0.0.1:0", Span{0, 0}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, addr := range []string{lis.Addr(), lis.data.Addr().String()} {
		for _, text := range []string{"", "GET / HTTP/1.1\r\nHost: x\r\n\r\n"} {
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_, _ = conn.Write([]byte(text))
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		g, err := Join(context.Background(), lis.Addr(), Span{1, 1}, cfg)
		if err != nil {
			t.Error(err)
			return
		}
		<-g.Done()
		_ = g.Close()
	}()
	g, err := lis.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	within(t, time.Minute, func() {
		_ = g.Close()
		<-done
	})
}

// TestLeafMayComeAgain has a leaf go before the group is complete.
func TestLeafMayComeAgain(t *testing.T) {
	cfg := Config{Size: 3, JoinTimeout: 20 * time.Second}
	lis, err := Listen("127.0.0.1:0", Span{0, 0}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := Join(ctx, lis.Addr(), Span{1, 1}, cfg)
		gone <- err
	}()
	for lis.joinedRanks() < 1 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-gone; err == nil {
		t.Error("joined alone")
	}
	for lis.joinedRanks() > 0 {
		time.Sleep(time.Millisecond)
	}
	second := make(chan *Group, 1)
	go func() {
		g, err := Join(context.Background(), lis.Addr(), Span{1, 2}, cfg)
		if err != nil {
			t.Error(err)
		}
		second <- g
	}()
	g, err := lis.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w := &world{groups: []*Group{g, <-second}}
	w.close()
}

func TestWrongRanks(t *testing.T) {
	if _, err := Listen("127.0.0.1:0", Span{1, 2}, Config{Size: 4}); err == nil {
		t.Error("a root without rank 0")
	}
	if _, err := Listen("127.0.0.1:0", Span{0, 4}, Config{Size: 4}); err == nil {
		t.Error("more ranks than there are")
	}
	if _, err := Join(t.Context(), "127.0.0.1:1", Span{0, 1}, Config{Size: 4}); err == nil {
		t.Error("a leaf with rank 0")
	}
	if _, err := Join(t.Context(), "nowhere", Span{1, 1}, Config{Size: 4}); err == nil {
		t.Error("an address without a port")
	}
	for _, cfg := range []Config{{}, {Size: -1}, {Size: 1 << 16}, {Size: 1, JoinTimeout: -1}} {
		if _, err := NewLocal(cfg); err == nil {
			t.Errorf("%+v: no error", cfg)
		}
	}
}
