package discovery

import (
	"errors"
	"strings"
	"testing"
	"time"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(sec float64) time.Time { return epoch.Add(time.Duration(sec * float64(time.Second))) }

func good(role Role, incarnation string) report {
	return report{info: ServerInfo{
		Role: role, Incarnation: incarnation, Fingerprint: "f", Layout: KVLayout{Layers: 2, KVHeads: 1, HeadDim: 8, DType: "F32", TP: 1, PP: 1},
	}, models: []Model{{ID: "tiny"}}}
}

var bad = report{err: errors.New("timeout")}

func ids(list []Instance) string {
	var out []string
	for _, in := range list {
		out = append(out, in.ID)
	}
	return strings.Join(out, " ")
}

func twoByTwo(t *testing.T) *table {
	t.Helper()
	tb := newTable()
	for _, id := range []string{"ctx0:1", "ctx1:1"} {
		if err := tb.add(id, "http://"+id, Context); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []string{"gen0:1", "gen1:1"} {
		if err := tb.add(id, "http://"+id, Generation); err != nil {
			t.Fatal(err)
		}
	}
	return tb
}

func TestProbesDecideRoutability(t *testing.T) {
	tb := twoByTwo(t)
	if got := ids(tb.where(Context, "", (*entry).routable)); got != "" {
		t.Fatalf("before any probe: %q", got)
	}
	tb.probed(at(0), "ctx1:1", good(Context, "a"))
	tb.probed(at(0), "ctx0:1", good(Context, "a"))
	if got := ids(tb.where(Context, "", (*entry).routable)); got != "ctx0:1 ctx1:1" {
		t.Fatalf("configuration order: %q", got)
	}
	tb.probed(at(3), "ctx0:1", bad)
	if got := ids(tb.where(Context, "", (*entry).routable)); got != "ctx0:1 ctx1:1" {
		t.Errorf("one failure is forgiven: %q", got)
	}
	tb.probed(at(6), "ctx0:1", bad)
	if got := ids(tb.where(Context, "", (*entry).routable)); got != "ctx1:1" {
		t.Errorf("two failures: %q", got)
	}
	if tb.probed(at(9), "ctx0:1", good(Context, "a")) {
		t.Error("same incarnation is no restart")
	}
	if got := ids(tb.where(Context, "", (*entry).routable)); got != "ctx0:1 ctx1:1" {
		t.Errorf("one success brings it back: %q", got)
	}
}

func TestStatusOfOneWorker(t *testing.T) {
	tb := twoByTwo(t)
	e := tb.byID["ctx0:1"]
	up := good(Context, "a")
	up.health.Status, up.info.Model = "idle", "tiny"
	tb.probed(at(0), e.id, up)
	if ws := e.status(at(1)); ws.Status != "idle" || ws.Model != "tiny" || !ws.Routable || ws.Error != "" || ws.LastSeenMs != 1000 {
		t.Errorf("up: %+v", ws)
	}
	tb.probed(at(3), e.id, report{err: ErrGone, gone: true})
	if ws := e.status(at(3)); ws.Status != "down" || ws.Model != "tiny" || ws.Routable || ws.Error == "" {
		t.Errorf("gone: %+v", ws)
	}
	tb.probed(at(6), e.id, good(Generation, "b"))
	if ws := e.status(at(6)); ws.Routable || !strings.Contains(ws.Error, "generation") {
		t.Errorf("another role: %+v", ws)
	}
}

func TestRestartAndGoneEndLegs(t *testing.T) {
	tb := twoByTwo(t)
	tb.probed(at(0), "gen0:1", good(Generation, "a"))
	down := tb.byID["gen0:1"].down
	tb.probed(at(3), "gen0:1", bad)
	select {
	case <-down:
		t.Fatal("a slow probe must not end running legs")
	default:
	}
	if !tb.probed(at(6), "gen0:1", good(Generation, "b")) {
		t.Error("a new incarnation is a restart")
	}
	<-down
	down = tb.byID["gen0:1"].down
	tb.probed(at(9), "gen0:1", report{err: ErrGone, gone: true})
	<-down
	if got := ids(tb.where(Generation, "", (*entry).routable)); got != "" {
		t.Errorf("gone at once: %q", got)
	}
}

func TestBreaker(t *testing.T) {
	tb := twoByTwo(t)
	tb.probed(at(0), "gen0:1", good(Generation, "a"))
	for i, sec := range []float64{0, 11, 12} {
		if tb.legEnded(at(sec), "gen0:1", false) {
			t.Fatalf("failure %d: the first is out of the window", i)
		}
	}
	tb.legEnded(at(12.5), "gen0:1", true)
	tb.legEnded(at(13), "gen0:1", false)
	if tb.legEnded(at(13.1), "gen0:1", false) {
		t.Fatal("a success in between resets the count")
	}
	if !tb.legEnded(at(13.2), "gen0:1", false) {
		t.Fatal("three in a row within the window open it")
	}
	if got := ids(tb.where(Generation, "", (*entry).routable)); got != "" {
		t.Errorf("open: %q", got)
	}
	tb.probed(at(15), "gen0:1", good(Generation, "a"))
	if got := ids(tb.where(Generation, "", (*entry).routable)); got != "" {
		t.Errorf("a good probe within the open time does not close it: %q", got)
	}
	tb.probed(at(18.2), "gen0:1", bad)
	tb.probed(at(20), "gen0:1", good(Generation, "a"))
	if got := ids(tb.where(Generation, "", (*entry).routable)); got != "" {
		t.Errorf("the failed trial at 18.2 reopened it until 23.2: %q", got)
	}
	tb.probed(at(23.3), "gen0:1", good(Generation, "a"))
	if got := ids(tb.where(Generation, "", (*entry).routable)); got != "gen0:1" {
		t.Errorf("closed again: %q", got)
	}
}

func TestRolesAndPairingWarnings(t *testing.T) {
	tb := twoByTwo(t)
	for _, id := range []string{"ctx0:1", "gen0:1"} {
		tb.probed(at(0), id, good(map[string]Role{"ctx0:1": Context, "gen0:1": Generation}[id], "a"))
	}
	tb.probed(at(0), "ctx1:1", good(Generation, "a"))
	other := good(Mixed, "a")
	other.info.Fingerprint = "g"
	tb.probed(at(0), "gen1:1", other)
	w := tb.warnings()
	if len(w) != 2 || w[0].Code != WarnPairing || !strings.Contains(w[0].Message, "gen1:1") ||
		w[1].Code != WarnRole || !strings.Contains(w[1].Message, "ctx1:1") {
		t.Errorf("warnings %+v", w)
	}
	if got := ids(tb.where(Context, "", (*entry).routable)); got != "ctx0:1" {
		t.Errorf("a worker with the wrong role is not routable: %q", got)
	}
}

// A process that holds only further ranks of an instance is none that requests may be sent to.
func TestRemoteRanksAreRefused(t *testing.T) {
	tb := twoByTwo(t)
	remote := good(Generation, "a")
	remote.info.Ranks, remote.info.Remote = "2-3", true
	tb.probed(at(0), "gen0:1", remote)
	if w := tb.warnings(); len(w) != 1 || w[0].Code != WarnRole || !strings.Contains(w[0].Message, "computes ranks 2-3 of an instance") {
		t.Errorf("warnings %+v", w)
	}
	if got := ids(tb.where(Generation, "", (*entry).routable)); got != "" {
		t.Errorf("routable: %q", got)
	}
}

func TestPairs(t *testing.T) {
	base := good(Context, "a").info
	cases := []struct {
		name string
		edit func(*ServerInfo)
		want bool
	}{
		{"same", func(*ServerInfo) {}, true},
		{"fingerprint", func(i *ServerInfo) { i.Fingerprint = "x" }, false},
		{"layers", func(i *ServerInfo) { i.Layout.Layers = 3 }, false},
		{"heads", func(i *ServerInfo) { i.Layout.KVHeads = 3 }, false},
		{"head dim", func(i *ServerInfo) { i.Layout.HeadDim = 3 }, false},
		{"dtype", func(i *ServerInfo) { i.Layout.DType = "BF16" }, false},
		{"tp without reshard", func(i *ServerInfo) { i.Layout.TP = 2 }, false},
		{"block size may differ", func(i *ServerInfo) { i.TokensPerBlock = 99 }, true},
	}
	for _, c := range cases {
		gen := base
		c.edit(&gen)
		if ok, why := Pairs(&base, &gen); ok != c.want || (why == "") != ok {
			t.Errorf("%s: %v %q", c.name, ok, why)
		}
	}
	a, b := base, base
	a.Layout.Reshard, b.Layout.Reshard, b.Layout.TP = true, true, 2
	if ok, _ := Pairs(&a, &b); !ok {
		t.Error("tp may differ when both reshard")
	}
}

func TestParseURL(t *testing.T) {
	for text, want := range map[string]string{
		"Host:80": "host:80", "http://h:1/": "h:1", "[::1]:9": "[::1]:9", " h:1 ": "h:1",
	} {
		id, url, err := ParseURL(text)
		if err != nil || id != want || url != "http://"+want {
			t.Errorf("%q: %q %q %v", text, id, url, err)
		}
	}
	for _, text := range []string{"", "h", "h:0", "h:70000", "h:x", "ftp://h:1", "http://h:1/p", "http://u@h:1", ":80", "::1:9"} {
		if id, _, err := ParseURL(text); err == nil {
			t.Errorf("%q accepted as %q", text, id)
		}
	}
}

func FuzzParseURL(f *testing.F) {
	f.Add("http://[::1]:80")
	f.Fuzz(func(t *testing.T, text string) {
		id, url, err := ParseURL(text)
		if err != nil {
			return
		}
		if id2, url2, err := ParseURL(url); err != nil || id2 != id || url2 != url {
			t.Errorf("%q is not stable: %q, then %q (%v)", text, id, id2, err)
		}
	})
}

// TestRestartSparesNewLegs: a worker that comes back between two probes gets legs before its restart is noticed. They run on
// the new process and must not be ended with those of the old one.
func TestRestartSparesNewLegs(t *testing.T) {
	tb := twoByTwo(t)
	r := &Registry{table: tb}
	const id = "gen0:1"
	var oldLost, youngLost int
	tb.probed(at(0), id, good(Generation, "a"))
	r.Watch(id, time.Now, func(Fate) { oldLost++ })
	stopped := r.Watch(id, time.Now, func(Fate) { t.Error("a leg that ended is told that it is lost") })
	tb.probed(at(3), id, good(Generation, "a"))
	r.Watch(id, time.Now, func(Fate) { youngLost++ })
	stopped.Stop()
	tb.probed(at(6), id, good(Generation, "b"))
	if oldLost != 1 {
		t.Error("a leg of the old process is lost")
	}
	if youngLost != 0 {
		t.Error("a leg that may run on the new process is lost")
	}
	tb.probed(at(9), id, good(Generation, "b"))
	tb.probed(at(12), id, report{err: ErrGone, gone: true})
	if oldLost != 1 || youngLost != 1 {
		t.Error("nothing listens there, and the leg is not lost")
	}
	if w := r.Watch("nowhere:1", time.Now, nil); w != nil {
		w.Stop()
		t.Error("an unknown address is watched")
	}
}

// A leg is lost when its worker gives no answer to several probes and the leg has said nothing since before them. A worker
// that says it is unwell, and a leg that goes on, are left alone.
func TestSilentLegsAreLost(t *testing.T) {
	mute := func(began float64) report { return report{err: ErrMute, mute: true, began: at(began)} }
	const fateOpen = Fate(99)
	unwell := report{err: errors.New("health is 503")}
	for name, tc := range map[string]struct {
		probes []report
		heard  float64
		want   Fate
	}{
		"silent":              {[]report{mute(3), mute(9)}, 2, FateSilent},
		"heard meanwhile":     {[]report{mute(3), mute(9)}, 4, fateOpen},
		"heard, then silent":  {[]report{mute(3), mute(9), mute(15)}, 4, FateSilent},
		"one probe":           {[]report{mute(3)}, 2, fateOpen},
		"unwell":              {[]report{unwell, unwell, unwell}, 2, fateOpen},
		"unwell, then silent": {[]report{mute(3), unwell, mute(9), mute(15)}, 8, FateSilent},
		"it answered":         {[]report{mute(3), good(Generation, "a"), mute(9)}, 2, fateOpen},
	} {
		t.Run(name, func(t *testing.T) {
			tb := twoByTwo(t)
			r := &Registry{table: tb}
			const id = "gen0:1"
			tb.probed(at(0), id, good(Generation, "a"))
			got := fateOpen
			r.Watch(id, func() time.Time { return at(tc.heard) }, func(f Fate) { got = f })
			for i, p := range tc.probes {
				tb.probed(at(float64(8+6*i)), id, p)
			}
			if got != tc.want {
				t.Errorf("fate %d, want %d", got, tc.want)
			}
		})
	}
}

// A process that comes back is not kept away for the failures of the one before.
func TestRestartClosesTheBreaker(t *testing.T) {
	tb := twoByTwo(t)
	tb.probed(at(0), "gen0:1", good(Generation, "a"))
	for range breakerCount {
		tb.legEnded(at(1), "gen0:1", false)
	}
	if tb.probed(at(1), "gen0:1", good(Generation, "a")); tb.byID["gen0:1"].routable() {
		t.Error("the same process is trusted at once")
	}
	if tb.probed(at(2), "gen0:1", good(Generation, "b")); !tb.byID["gen0:1"].routable() {
		t.Error("a new process is kept away")
	}
}

// Breakers never keep all workers of a leg away whose probes are good.
func TestLastWorkerStaysInReach(t *testing.T) {
	tb := twoByTwo(t)
	r := &Registry{table: tb, now: func() time.Time { return at(1) }}
	open := func(id string) {
		for range breakerCount {
			tb.legEnded(at(1), id, false)
		}
	}
	for _, id := range []string{"gen0:1", "gen1:1"} {
		tb.probed(at(0), id, good(Generation, "a"))
	}
	tb.probed(at(0), "ctx0:1", good(Context, "a"))
	open("gen0:1")
	if got := ids(r.Candidates(Generation, "tiny")); got != "gen1:1" {
		t.Errorf("one breaker is open: %q", got)
	}
	open("gen1:1")
	if got := ids(r.Candidates(Generation, "tiny")); got != "gen0:1 gen1:1" {
		t.Errorf("both are open: %q", got)
	}
	tb.probed(at(2), "gen1:1", report{err: ErrGone, gone: true})
	if got := ids(r.Candidates(Generation, "tiny")); got != "gen0:1" {
		t.Errorf("one is gone: %q", got)
	}
}
