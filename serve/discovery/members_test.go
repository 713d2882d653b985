package discovery

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func member(worker, id string, role Role, since int64) Member {
	return Member{WorkerID: worker, ID: id, URL: "http://" + id, Role: role, Since: since}
}

// joinedStatus names what /cluster_info lists, by leg.
func joinedStatus(r *Registry) string {
	st := r.Status()
	return strings.Join(st.ContextList, " ") + " | " + strings.Join(st.GenList, " ")
}

func membersRig(t *testing.T, f *fakeProber, opts Options) (*Registry, func()) {
	t.Helper()
	opts.Prober = f
	r, err := New(Config{MinContext: 1, MinGen: 1}, opts)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	synctest.Wait()
	return r, func() { cancel(); <-done }
}

func TestMembersJoinAndLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.set("http://c:1", good(Context, "a"))
		f.set("http://g:1", good(Generation, "a"))
		gone := make(chan string, 4)
		r, stop := membersRig(t, f, Options{OnGone: func(id string) { gone <- id }})
		defer stop()
		ctx, gen := member("w1", "c:1", Context, 1), member("w2", "g:1", Generation, 1)
		r.SetMembers([]Member{ctx})
		synctest.Wait()
		if r.Status().Ready {
			t.Error("ready without a gen worker")
		}
		r.SetMembers([]Member{ctx, gen})
		synctest.Wait()
		if !r.Status().Ready || joinedStatus(r) != "c:1 | g:1" || ids(r.Candidates(Context, "")) != "c:1" {
			t.Errorf("both joined: %+v", r.Status())
		}
		lost := make(chan struct{})
		defer r.Watch("g:1", time.Now, func(Fate) { close(lost) }).Stop()
		r.SetMembers([]Member{ctx})
		synctest.Wait()
		if r.Status().Ready || joinedStatus(r) != "c:1 | " || len(r.Candidates(Generation, "")) != 0 {
			t.Errorf("a worker that left is not chosen: %+v", r.Status())
		}
		select {
		case <-lost:
			t.Error("its running legs go on while it answers")
		case <-time.After(time.Minute):
		}
		f.set("http://g:1", report{err: ErrGone, gone: true})
		dead := time.Now()
		if <-lost; <-gone != "g:1" {
			t.Error("its legs end when nothing listens there any more")
		}
		if took := time.Since(dead); took > ProbeInterval {
			t.Errorf("that took %v", took)
		}
		synctest.Wait()
		if n := len(r.table.byID); n != 1 {
			t.Errorf("%d addresses are kept", n)
		}
		calls := f.count("http://g:1")
		time.Sleep(time.Hour)
		if f.count("http://g:1") != calls {
			t.Error("an address given up is probed")
		}
	})
}

// TestMemberReturns: the address of a worker that missed its heartbeats comes back as it was.
func TestMemberReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.set("http://c:1", good(Context, "a"))
		f.set("http://g:1", good(Generation, "a"))
		restarts := 0
		r, stop := membersRig(t, f, Options{OnRestart: func(string) { restarts++ }, OnGone: func(string) { restarts++ }})
		defer stop()
		all := []Member{member("w1", "c:1", Context, 1), member("w2", "g:1", Generation, 1)}
		r.SetMembers(all)
		synctest.Wait()
		r.SetMembers(all[:1])
		time.Sleep(time.Minute)
		all[1].WorkerID = "w3"
		r.SetMembers(all)
		if !r.Status().Ready {
			t.Error("it is chosen again at once: its probes went on")
		}
		if restarts != 0 {
			t.Error("routers forget nothing of a process that lives")
		}
	})
}

// TestAddressOutlivesItsFirstRegistration: a restart on the same port under a new id survives the old id's expiry.
func TestAddressOutlivesItsFirstRegistration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.set("http://c:1", good(Context, "a"))
		f.set("http://g:1", good(Generation, "a"))
		r, stop := membersRig(t, f, Options{})
		defer stop()
		ctx, old, again := member("w1", "c:1", Context, 1), member("z9", "g:1", Generation, 1), member("a1", "g:1", Generation, 2)
		r.SetMembers([]Member{ctx, old})
		synctest.Wait()
		f.set("http://g:1", good(Generation, "b"))
		for i, list := range [][]Member{{ctx, old, again}, {ctx, again}, {ctx, again, old}} {
			r.SetMembers(list)
			synctest.Wait()
			if got := r.Status(); !got.Ready || got.Gen[0].WorkerID != "a1" || got.Gen[0].Incarnation != "b" {
				t.Errorf("step %d: %+v", i, got)
			}
		}
	})
}

func TestMemberChangesRole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.set("http://a:1", good(Mixed, "a"))
		f.set("http://b:1", good(Mixed, "b"))
		f.set("http://c:1", good(Context, "c"))
		r, stop := membersRig(t, f, Options{})
		defer stop()
		a, b := member("w1", "a:1", Context, 1), member("w2", "b:1", Generation, 1)
		r.SetMembers([]Member{a, b})
		synctest.Wait()
		if got := joinedStatus(r); got != "a:1 | b:1" {
			t.Errorf("before: %s", got)
		}
		// The old key of a is still there when the new one comes, and b serves both from now on.
		r.SetMembers([]Member{a, member("w3", "a:1", Generation, 2), member("w4", "b:1", Mixed, 2)})
		if got := joinedStatus(r); got != "b:1 | a:1 b:1" || !r.Status().Ready {
			t.Errorf("after, at once: %s %+v", got, r.Status())
		}
		r.SetMembers([]Member{member("w5", "c:1", Context, 3), b})
		synctest.Wait()
		if got := ids(r.table.serving(Context, "")); got != "c:1" {
			t.Errorf("routable: %s", got)
		}
		r.SetMembers([]Member{member("w6", "c:1", Generation, 4), b}) // its role does not serve that
		if got := r.Status().Warnings; len(got) == 0 || got[0].Code != WarnRole || !strings.Contains(got[0].Message, "registered for the generation role") {
			t.Errorf("a worker that cannot serve its registered role: %+v", got)
		}
		if got := ids(r.table.serving(Generation, "")); got != "b:1" {
			t.Errorf("routable: %s", got)
		}
	})
}

// TestDepartedMisfitsWarnOfNothing: a worker is compared with those that are there.
func TestDepartedMisfitsWarnOfNothing(t *testing.T) {
	tb := newTable()
	ctx, gen := member("w1", "c:1", Context, 1), member("w2", "g:1", Generation, 1)
	tb.setMembers(at(0), []Member{ctx, gen})
	other := good(Generation, "a")
	other.info.Fingerprint = "another"
	tb.probed(at(0), "c:1", good(Context, "a"))
	tb.probed(at(0), "g:1", other)
	if n := len(tb.warnings()); n != 2 {
		t.Errorf("%d warnings of two that do not fit", n)
	}
	tb.setMembers(at(1), []Member{ctx})
	if got := tb.warnings(); len(got) != 0 {
		t.Errorf("%+v", got)
	}
}

func TestSetWarning(t *testing.T) {
	r, err := New(Config{}, Options{Prober: newFake()})
	if err != nil {
		t.Fatal(err)
	}
	r.SetWarning("W_X", "first")
	r.SetWarning("W_X", "second")
	if got := r.Status().Warnings; len(got) != 1 || got[0].Message != "second" {
		t.Errorf("%+v", got)
	}
	r.SetWarning("W_X", "")
	if got := r.Status().Warnings; len(got) != 0 {
		t.Errorf("%+v", got)
	}
}

func TestDepartedAddressIsWatchedForAWhile(t *testing.T) {
	tb := newTable()
	tb.setMembers(at(0), []Member{member("w", "g:1", Generation, 1)})
	e := tb.byID["g:1"]
	tb.probed(at(0), "g:1", good(Generation, "a"))
	tb.setMembers(at(1), nil)
	if tb.forgotten(at(2), e) || tb.prepared(Generation) != 0 {
		t.Error("forgotten at once, or still counted")
	}
	if !tb.forgotten(at(1+linger.Seconds()), e) || len(tb.order) != 0 {
		t.Error("kept for ever")
	}
}
