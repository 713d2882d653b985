package handover

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/runner"
	"tandem/engine/transfer/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// same compares the ids of two outputs.
func same(t *testing.T, what string, got, want []request.Token) {
	t.Helper()
	if !slices.EqualFunc(got, want, func(a, b request.Token) bool { return a.ID == b.ID }) {
		t.Fatalf("%s: got %v\nwant %v", what, got, want)
	}
}

// settled waits until a worker's condition holds.
func settled(t *testing.T, w *worker, what string, ok func(runner.Stats) bool) {
	t.Helper()
	limit, tick := time.After(30*time.Second), time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok(w.Stats(time.Minute)) {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("never %s: %+v", what, w.Stats(time.Minute))
		}
	}
}

func idle(s runner.Stats) bool {
	return s.BlocksLeased == 0 && s.BlocksReceiving == 0 && s.BlocksActive == 0 && s.HandoffsOpen == 0 && s.Alive == 0
}

func paths(t *testing.T, f func(t *testing.T, wc wire.Config)) {
	t.Run("tcp", func(t *testing.T) { f(t, wire.Config{NoLocal: true, NoShared: true}) })
	t.Run("shm", func(t *testing.T) { f(t, wire.Config{NoLocal: true}) })
	t.Run("local", func(t *testing.T) { f(t, wire.Config{}) })
}

// The split run gives the tokens of a single engine, and gen computes no prompt.
func TestSplitEqualsSingle(t *testing.T) {
	paths(t, func(t *testing.T, wc wire.Config) {
		one := start(t, executor.Mixed, wc, nil)
		ctx := start(t, executor.Ctx, wc, nil)
		gen := start(t, executor.Gen, wc, nil)
		for i, n := range []int{1, 3, 4, 5, 8, 63, 64, 65, 200} {
			p := prompt(i, n)
			want, _ := one.ask(t, &request.Request{Prompt: p, MaxTokens: 12}, nil)
			r, opaque := handOver(t, ctx, int64(i+1), p, 12)
			got, out := gen.ask(t, r, opaque)
			same(t, fmt.Sprintf("prompt of %d", n), got, want)
			if out.Finish != request.FinishLength {
				t.Errorf("finish %q", out.Finish)
			}
		}
		if gen.dev.prefill != 0 {
			t.Errorf("gen computed %d prompt rows", gen.dev.prefill)
		}
		settled(t, ctx, "idle", idle)
		settled(t, gen, "idle", idle)
		if s := gen.Stats(time.Minute); s.Recomputed != 0 {
			t.Errorf("%d recomputed", s.Recomputed)
		}
	})
}

// Blocks that gen holds from an earlier turn are not pulled again.
func TestSecondTurnPullsTheRest(t *testing.T) {
	paths(t, func(t *testing.T, wc wire.Config) {
		one := start(t, executor.Mixed, wc, nil)
		ctx := start(t, executor.Ctx, wc, nil)
		gen := start(t, executor.Gen, wc, nil)
		p := prompt(1, 80)
		for turn := range 4 {
			want, _ := one.ask(t, &request.Request{Prompt: p, MaxTokens: 9}, nil)
			r, opaque := handOver(t, ctx, int64(turn+1), p, 9)
			got, _ := gen.ask(t, r, opaque)
			same(t, fmt.Sprintf("turn %d", turn), got, want)
			for _, tok := range got {
				p = append(slices.Clone(p), tok.ID)
			}
			p = append(p, prompt(turn, 11)...)
		}
		if s := gen.Stats(time.Minute); s.PrefixHitTokens < 80*3 {
			t.Errorf("%d prompt tokens were reused", s.PrefixHitTokens)
		}
	})
}

// A byte path that breaks costs time, not tokens: gen computes what is missing, and
// tells ctx that it does not come again.
func TestBrokenByteWayIsRecomputed(t *testing.T) {
	wc := wire.Config{NoLocal: true, NoShared: true}
	one := start(t, executor.Mixed, wc, nil)
	ctx := start(t, executor.Ctx, wc, nil)
	control := strings.TrimPrefix(ctx.srv.Endpoint(), "tcp://")
	for _, limit := range []int64{1, 1500, 7000, 1 << 30} {
		broken := wc
		left := new(atomic.Int64) // of all connections: a cut one is replaced
		left.Store(limit)
		broken.Dial = func(c context.Context, addr string) (net.Conn, error) {
			var d net.Dialer
			conn, err := d.DialContext(c, "tcp", addr)
			if err != nil || addr == control {
				return conn, err
			}
			return &cutConn{Conn: conn, left: left}, nil
		}
		gen := start(t, executor.Gen, broken, nil)
		p := prompt(int(limit%91), 60)
		want, _ := one.ask(t, &request.Request{Prompt: p, MaxTokens: 9}, nil)
		r, opaque := handOver(t, ctx, limit+1, p, 9)
		got, _ := gen.ask(t, r, opaque)
		same(t, fmt.Sprintf("cut after %d", limit), got, want)
		settled(t, gen, "idle", idle)
		if s := gen.Stats(time.Minute); (s.Recomputed == 1) != (limit < 1<<30) {
			t.Errorf("cut after %d: recomputed %d", limit, s.Recomputed)
		}
		settled(t, ctx, "free long before its leases of a minute end", idle)
	}
}

// cutConn breaks after left bytes were read.
type cutConn struct {
	net.Conn
	left *atomic.Int64
}

func (c *cutConn) Read(b []byte) (int, error) {
	left := c.left.Load()
	if left <= 0 {
		_ = c.Close()
		return 0, net.ErrClosed
	}
	n, err := c.Conn.Read(b[:min(int64(len(b)), left)])
	c.left.Add(-int64(n))
	return n, err
}

// A client that leaves while blocks move frees them on both sides at once,
// long before the lease of a minute.
func TestCancelWhilePullingFreesBothSides(t *testing.T) {
	paths(t, func(t *testing.T, wc wire.Config) {
		ctx := start(t, executor.Ctx, wc, nil)
		gen := start(t, executor.Gen, wc, nil)
		for i := range 20 {
			r, opaque := handOver(t, ctx, int64(i+1), prompt(i, 200), 50)
			r.ID, r.DPRank, r.Sampling = gen.NewID(), -1, request.DefaultSampling()
			s, err := gen.Submit(t.Context(), r, opaque)
			if err != nil {
				t.Fatal(err)
			}
			if i%2 == 0 {
				settled(t, gen, "pulling", func(s runner.Stats) bool { return s.Receiving > 0 || s.Running > 0 || s.Alive == 0 })
			}
			// As a frontend does: both sides hear of it, in either order.
			s.Cancel()
			if _, err := ctx.Abort(t.Context(), r.TransferID); err != nil {
				t.Fatal(err)
			}
		}
		settled(t, gen, "idle", idle)
		settled(t, ctx, "idle", idle)
	})
}

// A lease that ended before gen came is recomputed.
func TestExpiredLease(t *testing.T) {
	paths(t, func(t *testing.T, wc wire.Config) {
		one := start(t, executor.Mixed, wc, nil)
		ctx := start(t, executor.Ctx, wc, func(c *executor.Config) { c.Lease = time.Millisecond })
		gen := start(t, executor.Gen, wc, nil)
		p := prompt(4, 50)
		want, _ := one.ask(t, &request.Request{Prompt: p, MaxTokens: 9}, nil)
		r, opaque := handOver(t, ctx, 1, p, 9)
		settled(t, ctx, "idle", idle)
		got, _ := gen.ask(t, r, opaque)
		same(t, "after expiry", got, want)
		if s := gen.Stats(time.Minute); s.Recomputed != 1 {
			t.Errorf("recomputed %d", s.Recomputed)
		}
	})
}
