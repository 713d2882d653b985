package cluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeClock is a time that only a test moves.
type fakeClock struct{ t time.Time }

func (c *fakeClock) now() time.Time { return c.t }

func newClock() *fakeClock { return &fakeClock{time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)} }

// step moves the clock as a running process sees it, sweeping each second.
func (c *fakeClock) step(s *Storage, d time.Duration) {
	for ; d > 0; d -= sweepInterval {
		c.t = c.t.Add(min(d, sweepInterval))
		s.mu.Lock()
		s.sweep()
		s.mu.Unlock()
	}
}

func keys(s *Storage, prefix string) string {
	list, _ := s.List(prefix)
	return strings.Join(slices.Sorted(maps.Keys(list)), " ")
}

func TestStorageExpires(t *testing.T) {
	clock := newClock()
	s := NewStorage(clock.now)
	if err := errors.Join(s.Set("/a/1", "x", 2*time.Second, false), s.Set("/ab/1", "y", -1, false)); err != nil {
		t.Fatal(err)
	}
	if err := s.Set("/a/1", "z", time.Second, false); !errors.Is(err, ErrExists) {
		t.Errorf("overwritten: %v", err)
	}
	_, changed := s.List("/a/")
	clock.step(s, 1900*time.Millisecond)
	if !s.Expire("/a/1", 2*time.Second) || keys(s, "/a/") != "/a/1" {
		t.Error("refreshed in time, and yet gone")
	}
	clock.step(s, 1900*time.Millisecond)
	select {
	case <-changed:
		t.Error("a refresh is no change")
	default:
	}
	clock.step(s, 200*time.Millisecond)
	<-changed
	if _, ok := s.Get("/a/1"); ok || s.Expire("/a/1", time.Second) || s.Delete("/a/1") || keys(s, "/") != "/ab/1" {
		t.Error("expired, and yet there")
	}
	clock.step(s, time.Hour)
	if keys(s, "/") != "/ab/1" || !s.Delete("/ab/1") {
		t.Error("a key without a TTL expired")
	}
}

// TestPauseIsNotCharged: when the host stood still, those who could not refresh get the time back.
func TestPauseIsNotCharged(t *testing.T) {
	clock := newClock()
	s := NewStorage(clock.now)
	_ = s.Set("k", "v", 10*time.Second, false)
	clock.step(s, 4*time.Second)
	clock.t = clock.t.Add(time.Minute)
	if _, ok := s.Get("k"); !ok {
		t.Fatal("expired by a pause of the storage itself")
	}
	clock.step(s, 4*time.Second)
	if _, ok := s.Get("k"); !ok {
		t.Error("the credit is too small")
	}
	clock.step(s, time.Second) // the second in which a sweep was due counts
	if _, ok := s.Get("k"); ok {
		t.Error("the credit is too large")
	}
}

func TestStorageIsBounded(t *testing.T) {
	s := NewStorage(newClock().now)
	if err := s.Set(strings.Repeat("k", maxKeyBytes+1), "", -1, true); !errors.Is(err, ErrTooLong) {
		t.Errorf("long key: %v", err)
	}
	if err := s.Set("k", strings.Repeat("v", maxValueBytes+1), -1, true); !errors.Is(err, ErrTooLong) {
		t.Errorf("long value: %v", err)
	}
	for i := range maxKeys {
		s.items[string(rune('a'+i%26))+strings.Repeat("x", i/26)] = item{}
	}
	if err := s.Set("one more", "", -1, true); !errors.Is(err, ErrFull) {
		t.Errorf("full: %v", err)
	}
	if err := s.Set("a", "new", -1, true); err != nil {
		t.Errorf("a key that is there: %v", err)
	}
}

// TestStorageAgainstModel compares the storage with the obvious one over random calls.
func TestStorageAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		clock := newClock()
		s := NewStorage(clock.now)
		type entry struct {
			value string
			until time.Time
		}
		model := map[string]entry{}
		alive := func(k string) bool {
			e, ok := model[k]
			return ok && (e.until.IsZero() || clock.t.Before(e.until))
		}
		key := rapid.SampledFrom([]string{"/a/1", "/a/2", "/ab/1"})
		ttl := rapid.SampledFrom([]time.Duration{-1, time.Second, 3 * time.Second})
		until := func(d time.Duration) time.Time { return deadlineOf(clock.t, d) }
		t.Repeat(map[string]func(*rapid.T){
			"set": func(t *rapid.T) {
				k, d, over := key.Draw(t, "key"), ttl.Draw(t, "ttl"), rapid.Bool().Draw(t, "overwrite")
				v := rapid.StringN(0, 3, -1).Draw(t, "value")
				want := !alive(k) || over
				if err := s.Set(k, v, d, over); (err == nil) != want {
					t.Fatalf("set %s: %v, want ok %v", k, err, want)
				}
				if want {
					model[k] = entry{v, until(d)}
				}
			},
			"expire": func(t *rapid.T) {
				k, d := key.Draw(t, "key"), ttl.Draw(t, "ttl")
				if got := s.Expire(k, d); got != alive(k) {
					t.Fatalf("expire %s: %v", k, got)
				}
				if alive(k) {
					model[k] = entry{model[k].value, until(d)}
				}
			},
			"delete": func(t *rapid.T) {
				k := key.Draw(t, "key")
				if got := s.Delete(k); got != alive(k) {
					t.Fatalf("delete %s: %v", k, got)
				}
				delete(model, k)
			},
			"wait": func(t *rapid.T) {
				clock.step(s, time.Duration(rapid.IntRange(1, 2500).Draw(t, "ms"))*time.Millisecond)
			},
			"": func(t *rapid.T) {
				want := map[string]string{}
				for k := range model {
					if alive(k) && strings.HasPrefix(k, "/a/") {
						want[k] = model[k].value
					}
				}
				if got, _ := s.List("/a/"); !maps.Equal(got, want) {
					t.Fatalf("list %v, want %v", got, want)
				}
			},
		})
	})
}

func TestRunSweeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStorage(nil)
		go s.Run(t.Context())
		_ = s.Set("k", "v", 1500*time.Millisecond, false)
		_, changed := s.List("")
		start := time.Now()
		<-changed
		if took := time.Since(start); took != 2*time.Second {
			t.Errorf("swept after %v", took)
		}
	})
}

// exchange sends one request to a handler and returns status and body.
func exchange(h http.Handler, method, uri, body string, edit func(*http.Request)) (int, string) {
	r := httptest.NewRequest(method, uri, strings.NewReader(body))
	r.RemoteAddr = "127.0.0.1:5"
	if edit != nil {
		edit(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code, strings.TrimSpace(w.Body.String())
}

func TestHandler(t *testing.T) {
	s := NewStorage(nil)
	h := s.Handler(Access{})
	for _, tc := range []struct {
		method, uri, body string
		status            int
		want              string
	}{
		{"GET", "/get_prefix?key_prefix=/none", "", 200, `{"result":{}}`},
		{"GET", "/get?key=a", "", 404, `{"result":null}`},
		{"POST", "/set", `{"key":"a","value":"1","ttl":5}`, 200, `{"result":true}`},
		{"POST", "/set", `{"key":"a","value":"2"}`, 409, `{"result":false}`},
		{"POST", "/set", `{"key":"a","value":"2","overwrite_if_exists":true}`, 200, `{"result":true}`},
		{"GET", "/get?key=a", "", 200, `{"result":"2"}`},
		{"GET", "/get_prefix?key_prefix=a&keys_only=true", "", 200, `{"result":{"a":""}}`},
		{"GET", "/get_prefix?key_prefix=a", "", 200, `{"result":{"a":"2"}}`},
		{"GET", "/expire?key=a&ttl=2.5", "", 200, `{"result":true}`},
		{"GET", "/expire?key=b&ttl=1", "", 404, `{"result":null}`},
		{"GET", "/expire?key=a", "", 400, ""},
		{"DELETE", "/delete?key=a", "", 200, `{"result":true}`},
		{"DELETE", "/delete?key=a", "", 404, `{"result":null}`},
		{"POST", "/set", `[]`, 400, ""},
		{"POST", "/set", `{"value":"2"}`, 400, ""},
		{"POST", "/set", `{"key":"a","value":"` + strings.Repeat("x", maxValueBytes+1) + `"}`, 413, ""},
		{"POST", "/set", strings.Repeat(" ", maxBody+1), 413, ""},
		{"GET", "/set", "", 405, ""},
	} {
		status, body := exchange(h, tc.method, tc.uri, tc.body, nil)
		if status != tc.status || tc.want != "" && body != tc.want {
			t.Errorf("%s %s: %d %s, want %d %s", tc.method, tc.uri, status, body, tc.status, tc.want)
		}
	}
}

func TestAccess(t *testing.T) {
	clock := newClock()
	key := []byte("a key of sixteen")
	from := func(addr string) func(*http.Request) { return func(r *http.Request) { r.RemoteAddr = addr } }
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	signed := func(key []byte, at time.Time, uri, body string) func(*http.Request) {
		return func(r *http.Request) {
			of := httptest.NewRequest(r.Method, uri, nil)
			sign(of, key, at, []byte(body))
			r.Header.Set(headerAuth, of.Header.Get(headerAuth))
			r.RemoteAddr = "10.0.0.9:5"
		}
	}
	const body = `{"key":"k","value":"v","overwrite_if_exists":true}`
	for name, tc := range map[string]struct {
		access Access
		edit   func(*http.Request)
		want   int
	}{
		"no key, from here":                  {Access{}, nil, 200},
		"no key, from here by v6":            {Access{}, from("[::1]:7"), 200},
		"no key, another host":               {Access{}, from("10.0.0.9:5"), 401},
		"no key, another host, trusted":      {Access{Trusted: true}, from("10.0.0.9:5"), 200},
		"no key, a web page in a browser":    {Access{}, header("Origin", "http://evil"), 401},
		"no key, through a proxy here":       {Access{}, header("X-Forwarded-For", "10.0.0.9"), 401},
		"key, unsigned from here":            {Access{Key: key}, nil, 401},
		"key, unsigned and trusted":          {Access{Key: key, Trusted: true}, nil, 401},
		"key, bearer":                        {Access{Key: key}, header("Authorization", "Bearer "+string(key)), 200},
		"key, another bearer":                {Access{Key: key}, header("Authorization", "Bearer nope"), 401},
		"key, signed":                        {Access{Key: key}, signed(key, clock.t, "/set", body), 200},
		"key, clock a minute off":            {Access{Key: key}, signed(key, clock.t.Add(-time.Minute), "/set", body), 200},
		"key, replayed later":                {Access{Key: key}, signed(key, clock.t.Add(-time.Hour), "/set", body), 401},
		"key, signed for another body":       {Access{Key: key}, signed(key, clock.t, "/set", "{}"), 401},
		"key, signed for another path":       {Access{Key: key}, signed(key, clock.t, "/get", body), 401},
		"key, signed with another key":       {Access{Key: key}, signed([]byte("another sixteen!"), clock.t, "/set", body), 401},
		"key, a signature that is no number": {Access{Key: key}, header(headerAuth, "x:y"), 401},
	} {
		h := NewStorage(clock.now).Handler(tc.access)
		if got, text := exchange(h, "POST", "/set", body, tc.edit); got != tc.want {
			t.Errorf("%s: %d %s, want %d", name, got, text, tc.want)
		}
	}
}

func FuzzSet(f *testing.F) {
	f.Add([]byte(`{"key":"a","value":"b","ttl":1e300}`))
	f.Add([]byte(`{"key":"/disagg/c/workers/x","value":"{}","ttl":-1,"overwrite_if_exists":true}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		s := NewStorage(nil)
		r := httptest.NewRequest("POST", "/set", bytes.NewReader(body))
		r.RemoteAddr = "127.0.0.1:5"
		w := httptest.NewRecorder()
		s.Handler(Access{}).ServeHTTP(w, r)
		if !json.Valid(w.Body.Bytes()) {
			t.Errorf("%d %q", w.Code, w.Body)
		}
	})
}
