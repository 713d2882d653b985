package wire

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"tandem/engine/transfer"
)

var firstTokens = []transfer.Token{{ID: 65, Logprob: -0.25, Rank: 1, Top: []transfer.TopLogprob{{ID: 65, Logprob: -0.25}, {ID: 7, Logprob: -3}}}}

// early makes a generation-first handle of what an owner has.
func early(h transfer.Handle) transfer.Handle {
	h.GenFirst, h.Epoch = true, 0
	return h
}

// TestFirstTokensComeWithFin: also where nothing had to be pulled.
func TestFirstTokensComeWithFin(t *testing.T) {
	bothPaths(t, func(t *testing.T, cfg Config) {
		for _, have := range []int{0, 8} {
			o := newOwner(t, cfg, newPool(16, 1024).fill(1))
			o.onAttach = func(m transfer.Attach) bool {
				o.Accept(transfer.Accept{Peer: m.Peer, ID: m.ID, Epoch: 7, Skip: have, Blocks: []int32{0, 1, 2, 3, 4, 5, 6, 7}[have:], First: firstTokens})
				return false
			}
			h := o.offer(1, 0, 8)
			o.leases[1].peer = 1
			g := newGen(t, cfg, newPool(16, 1024))
			g.pullTo(h, 0, have)
			e := g.final(t, 1)
			checkOK(t, e, 8-have)
			if !reflect.DeepEqual(e.First, firstTokens) {
				t.Errorf("first tokens %+v", e.First)
			}
		}
	})
}

// TestAttachFirst: every rank hears of an ATTACH that came before its request, the
// others forget it once one has claimed it, and all hear of its end until then.
func TestAttachFirst(t *testing.T) {
	bothPaths(t, func(t *testing.T, cfg Config) {
		o := newOwner(t, cfg, newPool(16, 1024).fill(1))
		other := make(chan any, 10)
		o.srv.Rank(1, newPool(1, 1024), func(m any) { other <- m })
		o.onAttach = func(transfer.Attach) bool { return false }
		g := newGen(t, cfg, newPool(16, 1024))
		h := early(o.offer(1, 0, 8))
		p := transfer.Pull{Handle: h, Dst: []int32{0, 1, 2, 3, 4, 5, 6, 7}, Prompt: transfer.Hash{1, 2, 3}}
		g.Start(p)
		m := next[transfer.Attach](t, o)
		if !m.GenFirst || m.PromptTokens != h.PromptTokens || m.Prompt != p.Prompt {
			t.Errorf("attach %+v", m)
		}
		if got, ok := receive(t, other).(transfer.Attach); !ok || got.Peer != m.Peer {
			t.Errorf("the other rank got %+v", got)
		}
		o.Progress(transfer.Progress{Peer: m.Peer, ID: m.ID, Claimed: true})
		if d, ok := receive(t, other).(transfer.Detach); !ok || !d.Cancelled || d.Peer != m.Peer {
			t.Errorf("the other rank got %+v", d)
		}
		o.answer(m)
		checkOK(t, g.final(t, 1), 8)
		checkBlocks(t, o.mem, 0, g.mem, 0, 8)

		p.Handle = early(o.offer(2, 0, 8))
		g.Start(p)
		next[transfer.Attach](t, o)
		receive(t, other)
		g.Stop(2)
		checkFailed(t, g.final(t, 2), CodeCancelled, "stopped")
		if d := next[transfer.Detach](t, o); !d.Cancelled || d.ID != 2 {
			t.Errorf("detach %+v", d)
		}
		if d, ok := receive(t, other).(transfer.Detach); !ok || !d.Cancelled || d.ID != 2 {
			t.Errorf("the other rank got %+v", d)
		}
	})
}

func receive(t *testing.T, c chan any) any {
	t.Helper()
	select {
	case m := <-c:
		return m
	case <-time.After(wait):
		t.Fatal("nothing came")
		return nil
	}
}

// TestEndedRequest: the owner says that nothing is left to fetch.
func TestEndedRequest(t *testing.T) {
	bothPaths(t, func(t *testing.T, cfg Config) {
		o := newOwner(t, cfg, newPool(16, 1024))
		o.onAttach = func(m transfer.Attach) bool {
			o.Progress(transfer.Progress{Peer: m.Peer, ID: m.ID, Claimed: true})
			o.End(transfer.End{Peer: m.Peer, ID: m.ID, First: firstTokens})
			return false
		}
		g := newGen(t, cfg, newPool(16, 1024))
		h := early(o.offer(1, 0, 8))
		g.Start(transfer.Pull{Handle: h, Dst: []int32{0, 1, 2, 3, 4, 5, 6, 7}})
		if e := g.final(t, 1); e.OK || !e.Ended || !reflect.DeepEqual(e.First, firstTokens) {
			t.Errorf("%+v", e)
		}
	})
}

// TestRejectsOfGenerationFirst: another life of the worker, and another prompt.
func TestRejectsOfGenerationFirst(t *testing.T) {
	bothPaths(t, func(t *testing.T, cfg Config) {
		o := newOwner(t, cfg, newPool(16, 1024))
		o.onAttach = func(m transfer.Attach) bool {
			o.Reject(transfer.Reject{Peer: m.Peer, ID: m.ID, Reason: transfer.RejectPrompt, Detail: "differs"})
			return false
		}
		g := newGen(t, cfg, newPool(16, 1024))
		p := transfer.Pull{Handle: early(o.offer(1, 0, 1)), Dst: []int32{0}}
		g.Start(p)
		checkFailed(t, g.final(t, 1), CodePrompt, "differs")
		p.Handle.Incarnation = "before"
		g.Start(p)
		checkFailed(t, g.final(t, 1), CodeUnknown, "earlier life")
	})
}

// TestEarlyKeepAliveReachesAllRanks: nobody knows where the request will be.
func TestEarlyKeepAliveReachesAllRanks(t *testing.T) {
	o := newOwner(t, Config{}, newPool(16, 1024))
	other := make(chan any, 10)
	o.srv.Rank(1, newPool(1, 1024), func(m any) { other <- m })
	g := newGen(t, Config{}, newPool(16, 1024))
	h := early(o.offer(3, 0, 1))
	g.KeepAlive(h, time.Second)
	for _, m := range []any{next[transfer.KeepAlive](t, o), receive(t, other)} {
		if k, ok := m.(transfer.KeepAlive); !ok || k.ID != 3 || k.Epoch != 0 {
			t.Errorf("%+v", m)
		}
	}
	g.Stop(3)
}

func TestTemplate(t *testing.T) {
	want := transfer.Handle{Incarnation: "ctx-1", Endpoint: "tcp://h:1", Lease: time.Minute, Layout: testLayout, GenFirst: true, Hashes: []transfer.Hash{}}
	h, err := DecodeHandle(EncodeHandle(&want))
	if err != nil || !reflect.DeepEqual(*h, want) {
		t.Errorf("%+v, %v", h, err)
	}
	for name, change := range map[string]func(*transfer.Handle){
		"id":     func(h *transfer.Handle) { h.ID = 1 },
		"epoch":  func(h *transfer.Handle) { h.Epoch = 1 },
		"prompt": func(h *transfer.Handle) { h.PromptTokens = 4 },
		"hashes": func(h *transfer.Handle) { h.Hashes = []transfer.Hash{{}} },
	} {
		bad := want
		change(&bad)
		if _, err := DecodeHandle(EncodeHandle(&bad)); err == nil {
			t.Errorf("a template with %s is accepted", name)
		}
	}
}

func TestFirstTokensAreBounded(t *testing.T) {
	many := slices.Repeat(firstTokens, maxFirstTokens+1)
	if _, err := decodeTokens(encodeTokens(many)); err == nil {
		t.Error("no bound")
	}
	wide := []transfer.Token{{Top: make([]transfer.TopLogprob, maxTopLogprobs+1)}}
	if _, err := decodeTokens(encodeTokens(wide)); err == nil {
		t.Error("no bound of alternatives")
	}
}
