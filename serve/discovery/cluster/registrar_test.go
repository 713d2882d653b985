package cluster

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tandem/serve/discovery"
)

// direct makes a Storage a Store without HTTP; fail makes calls fail.
type direct struct {
	*Storage
	mu   sync.Mutex
	fail error
	beat int // refreshes that got through or failed
	puts int
}

// count reads one of the counts.
func (d *direct) count(of *int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return *of
}

func (d *direct) broken() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.fail
}

func (d *direct) set(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail = err
}

func (d *direct) Put(_ context.Context, key, value string, ttl time.Duration) error {
	d.mu.Lock()
	d.puts++
	d.mu.Unlock()
	if err := d.broken(); err != nil {
		return err
	}
	return d.Set(key, value, ttl, true)
}

func (d *direct) Refresh(_ context.Context, key string, ttl time.Duration) error {
	d.mu.Lock()
	d.beat++
	d.mu.Unlock()
	if err := d.broken(); err != nil {
		return err
	}
	if !d.Expire(key, ttl) {
		return ErrAbsent
	}
	return nil
}

func (d *direct) Delete(_ context.Context, key string) error {
	if err := d.broken(); err != nil {
		return err
	}
	d.Storage.Delete(key)
	return nil
}

// roles lists what is registered as role@address.
func roles(t *testing.T, s *Storage) string {
	t.Helper()
	list, _ := s.List(Prefix("c"))
	var out []string
	for key, value := range list {
		m, err := Parse(Prefix("c"), key, value)
		if err != nil {
			t.Error(err)
		}
		out = append(out, string(m.Role)+"@"+m.ID)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func startRegistrar(t *testing.T, store Store) (r *Registrar, stop func()) {
	t.Helper()
	r = NewRegistrar(store, RegistrarConfig{
		ClusterName: "c", Heartbeat: 5 * time.Second, TTL: 10 * time.Second,
		Worker: Worker{Host: "h", Port: 1, Role: discovery.Mixed, Incarnation: "i"},
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	synctest.Wait()
	return r, func() { cancel(); <-done }
}

func TestRegistrarKeepsItsKeyAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &direct{Storage: NewStorage(nil)}
		go store.Run(t.Context())
		r, stop := startRegistrar(t, store)
		if got := roles(t, store.Storage); got != "mixed@h:1" {
			t.Fatalf("registered: %q", got)
		}
		time.Sleep(time.Hour + time.Second)
		if got := roles(t, store.Storage); got != "mixed@h:1" || store.count(&store.beat) != 720 {
			t.Errorf("after an hour: %q, %d heartbeats", got, store.count(&store.beat))
		}
		if err := r.SetRole(t.Context(), discovery.Context); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := roles(t, store.Storage); got != "context@h:1" {
			t.Errorf("another role: %q", got)
		}
		stop()
		if got := roles(t, store.Storage); got != "" {
			t.Errorf("left in good order: %q", got)
		}
	})
}

// TestRegistrarReturns: a store that lost the key, or cannot be reached for a while, gets the registration again.
func TestRegistrarReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &direct{Storage: NewStorage(nil)}
		go store.Run(t.Context())
		r, stop := startRegistrar(t, store)
		defer stop()
		if on, n := r.State(); !on || n != 0 {
			t.Errorf("state %v, %d failures", on, n)
		}
		list, _ := store.List("")
		for key := range list {
			store.Storage.Delete(key)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if got := roles(t, store.Storage); got != "mixed@h:1" {
			t.Errorf("a lost key comes back at the next heartbeat: %q", got)
		}
		// A refresh that fails is tried again at once, within the TTL.
		time.Sleep(4 * time.Second)
		store.set(errors.New("no route"))
		puts := store.count(&store.puts)
		time.Sleep(1200 * time.Millisecond) // the heartbeat and its first repetition failed
		store.set(nil)
		time.Sleep(4 * time.Second)
		if got := roles(t, store.Storage); got != "mixed@h:1" || store.count(&store.puts) != puts {
			t.Errorf("a short failure costs the registration: %q, registered %d times more", got, store.count(&store.puts)-puts)
		}
		store.set(errors.New("no route"))
		time.Sleep(time.Minute)
		if got := roles(t, store.Storage); got != "" {
			t.Errorf("still there: %q", got)
		}
		_, failed := r.State()
		if on, n := r.State(); on || n < 30 {
			t.Errorf("after a minute: state %v, %d failures", on, n)
		}
		store.set(nil)
		time.Sleep(time.Second)
		synctest.Wait()
		if got := roles(t, store.Storage); got != "mixed@h:1" {
			t.Errorf("a store that can be reached again has it within a second: %q", got)
		}
		if on, n := r.State(); !on || n != failed {
			t.Errorf("state %v, %d failures", on, n)
		}
	})
}

func TestClientAndRegistrarOverHTTP(t *testing.T) {
	key := []byte("a key of sixteen")
	s := NewStorage(nil)
	srv := httptest.NewServer(s.Handler(Access{Key: key}))
	defer srv.Close()
	c := NewClient(ClientConfig{URL: srv.URL + "/", Key: key, Poll: time.Millisecond})
	defer c.Close()
	ctx := t.Context()
	k := Prefix("c") + "w"
	if err := c.Refresh(ctx, k, time.Second); !errors.Is(err, ErrAbsent) {
		t.Errorf("refresh of nothing: %v", err)
	}
	if err := errors.Join(c.Delete(ctx, k), c.Put(ctx, k, "v", time.Minute), c.Put(ctx, k, "w", time.Minute), c.Refresh(ctx, k, time.Minute)); err != nil {
		t.Error(err)
	}
	lists := make(chan map[string]string)
	fctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		c.Follow(fctx, Prefix("c"), func(l map[string]string) {
			select {
			case lists <- l:
			case <-fctx.Done():
			}
		}, func(error) {})
	})
	if got := <-lists; !maps.Equal(got, map[string]string{k: "w"}) {
		t.Errorf("%v", got)
	}
	if err := c.Delete(ctx, k); err != nil {
		t.Error(err)
	}
	for len(<-lists) > 0 {
	}
	cancel()
	wg.Wait()
	stranger := NewClient(ClientConfig{URL: srv.URL})
	defer stranger.Close()
	if err := stranger.Put(ctx, k, "v", time.Minute); !errors.Is(err, ErrDenied) {
		t.Errorf("without the key: %v", err)
	}
	none := httptest.NewServer(nil)
	defer none.Close()
	other := NewClient(ClientConfig{URL: none.URL})
	defer other.Close()
	if err := other.Refresh(ctx, k, time.Minute); err == nil || errors.Is(err, ErrAbsent) {
		t.Errorf("a server that is no storage: %v", err)
	}
}

// TestHeldKeepsWorkersOverARestart of the storage.
func TestHeldKeepsWorkersOverARestart(t *testing.T) {
	var h held
	clock := newClock()
	merge := func(epoch string, keys ...string) string {
		got := map[string]string{}
		for _, k := range keys {
			got[k] = epoch
		}
		return strings.Join(slices.Sorted(maps.Keys(h.merge(clock.t, 10*time.Second, epoch, got))), " ")
	}
	steps := []struct {
		after time.Duration
		epoch string
		keys  []string
		want  string
	}{
		{0, "e1", []string{"a", "b"}, "a b"},
		{time.Second, "e1", []string{"a"}, "a"},
		{time.Second, "e1", []string{"a", "c"}, "a c"},
		{time.Second, "e2", nil, "a c"},
		{5 * time.Second, "e2", []string{"c"}, "a c"},
		{4900 * time.Millisecond, "e2", []string{"c"}, "a c"},
		{100 * time.Millisecond, "e2", []string{"c"}, "c"},
		{0, "e2", nil, ""},
	}
	for i, st := range steps {
		clock.t = clock.t.Add(st.after)
		if got := merge(st.epoch, st.keys...); got != st.want {
			t.Errorf("step %d: %q, want %q", i, got, st.want)
		}
	}
}

// told writes down what a registry is told.
type told struct {
	list     []string
	warnings map[string]string
}

func (t *told) SetMembers(list []discovery.Member) {
	t.list = nil
	for _, m := range list {
		t.list = append(t.list, m.WorkerID)
	}
}
func (t *told) SetWarning(code, message string) { t.warnings[code] = message }

// script is a Source that plays.
type script []any

func (s script) Follow(_ context.Context, _ string, apply func(map[string]string), problem func(error)) {
	for _, step := range s {
		switch x := step.(type) {
		case map[string]string:
			apply(x)
		case error:
			problem(x)
		case nil:
			problem(nil)
		case func():
			x()
		}
	}
}

func TestFollowSkipsWhatIsMalformed(t *testing.T) {
	var log strings.Builder
	to := &told{warnings: map[string]string{}}
	prefix := Prefix("c")
	lists := map[string]string{prefix + "b": `{"host":"h","port":1,"role":"context"}`, prefix + "a": `{"host":"h","port":2,"role":1}`, prefix + "z": "{"}
	warned := func(want bool) func() {
		return func() {
			if (to.warnings[WarnStorage] != "") != want {
				t.Errorf("warning %q", to.warnings[WarnStorage])
			}
		}
	}
	Follow(t.Context(), script{
		lists, nil, warned(false), errors.New("no route"), errors.New("no route"), warned(true), lists, nil, warned(false),
	}, "c", to, slog.New(slog.NewTextHandler(&log, nil)))
	if strings.Join(to.list, " ") != "a b" {
		t.Errorf("members %v", to.list)
	}
	for text, n := range map[string]int{"registration skipped": 1, "cannot be read": 1, "can be read again": 1} {
		if got := strings.Count(log.String(), text); got != n {
			t.Errorf("%q is %d times in\n%s", text, got, &log)
		}
	}
}
