package load

import (
	"net/http"
	"sync"
	"testing"

	"tandem/test/bench/result"
	"tandem/test/bench/schedule"
	"tandem/test/bench/stub"
)

// A server that promises to keep connections and answers one request on each.
func TestAKeptConnectionThatClosesIsNoFailure(t *testing.T) {
	var mu sync.Mutex
	used, closed := map[string]bool{}, 0
	answer := &stub.Server{}
	url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		again := used[r.RemoteAddr]
		used[r.RemoteAddr] = true
		if again {
			closed++
		}
		mu.Unlock()
		if !again {
			answer.ServeHTTP(w, r)
			return
		}
		if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
			_ = conn.Close() // the client sees it
		}
	}))
	for _, r := range mustRun(t, options(t, url, Completions, random(5), schedule.Options{Mode: schedule.Concurrency, Concurrency: 1})) {
		if r.Outcome != result.OK {
			t.Errorf("%s: %s", r.Outcome, r.Error)
		}
	}
	if closed == 0 {
		t.Error("no connection was used twice")
	}
}
