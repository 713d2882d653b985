package wire

import (
	"net"
	"testing"

	"tandem/engine/transfer"
)

// Who gave up a transfer tells its owner on a stream of its own, signed.
func TestRelease(t *testing.T) {
	bothPaths(t, func(t *testing.T, cfg Config) {
		cfg.Key = []byte("secret")
		o := newOwner(t, cfg, newPool(8, 1024))
		g := newGen(t, cfg, newPool(8, 1024))
		h := o.offer(1, 0, 4)
		h.Epoch = 9
		g.Release(h)
		if r := next[transfer.Release](t, o); r.ID != 1 || r.Epoch != 9 {
			t.Errorf("%+v", r)
		}
		// Of another worker's life, and of one that has not the key, nothing comes.
		foreign := cfg
		foreign.Key = []byte("other")
		other := h
		other.Incarnation = "ctx-0"
		for _, f := range []func(){
			func() { newGen(t, foreign, newPool(8, 1024)).release(h) },
			func() { g.release(other) },
		} {
			f()
			select {
			case m := <-o.got:
				t.Errorf("%+v came", m)
			default:
			}
		}
		first := h // where nobody knows the rank yet, all are told
		first.GenFirst, first.Rank, first.Epoch = true, 5, 0
		g.Release(first)
		if r := next[transfer.Release](t, o); r.ID != 1 || r.Epoch != 0 {
			t.Errorf("%+v", r)
		}
	})
}

// A pull that is stopped while it has no stream to say so on opens another one.
func TestStoppedPullIsCancelledOnANewStream(t *testing.T) {
	o := newOwner(t, Config{}, newPool(8, 1024))
	broken, dialled := make(chan net.Conn, 1), make(chan struct{})
	release := make(chan struct{})
	nw := &network{wrap: func(n int, addr string, c net.Conn) (net.Conn, error) {
		switch {
		case addr != o.controlAddr():
		case n == 1:
			broken <- c
		case n == 2: // the pull is on its second try
			close(dialled)
			<-release
			_ = c.Close()
			return nil, net.ErrClosed
		}
		return c, nil
	}}
	o.onAttach = func(transfer.Attach) bool {
		_ = (<-broken).Close()
		return false
	}
	g := newGen(t, Config{NoLocal: true, Dial: nw.dial}, newPool(8, 1024))
	g.pullTo(o.offer(1, 0, 4), 0, 0)
	<-dialled
	g.Stop(1)
	checkFailed(t, g.final(t, 1), CodeCancelled, "")
	close(release)
	if r := next[transfer.Release](t, o); r.ID != 1 || r.Epoch != 7 {
		t.Errorf("%+v", r)
	}
}

// An owner that is gone is not told for ever.
func TestReleaseOfAnOwnerThatIsGone(t *testing.T) {
	o := newOwner(t, Config{}, newPool(8, 1024))
	h := o.offer(1, 0, 4)
	o.srv.Close()
	nw := &network{}
	g := newGen(t, Config{NoLocal: true, Dial: nw.dial}, newPool(8, 1024))
	g.release(h)
	local := newGen(t, Config{}, newPool(8, 1024))
	local.release(h)
	bad := h
	bad.Endpoint = "nowhere"
	local.release(bad)
}
