//go:build e2e

package e2e

import (
	"fmt"
	"net"
	"strconv"
	"syscall"
	"testing"

	"tandem/test/tinymodel"
)

// chaosYAML is a worker whose patience is short, so that all its limits are met within seconds.
const chaosYAML = `
served_model_name: %s
max_batch_size: 320
max_num_tokens: 2048
max_seq_len: 2048
kv_cache_config: {max_tokens: %d}
shutdown_grace_sec: 5
cache_transceiver_config:
  lease_ms: 8000
  kv_transfer_timeout_ms: 4000
  attach_ms: 2000
  progress_ms: 2000
  control_port: %d
  data_port: %d
  advertise_host: %s
`

// chaosFront is the frontend's part; what it does not name has its default.
const chaosFront = `
request_timeout_sec: 30
stream_idle_timeout_sec: 4
handoff_lease_sec: 8
connect_timeout_ms: 1000
max_body_memory_mb: 256
`

// member is one worker that can be ended and started again at the same address. Frontend and other workers reach it through
// proxies only.
type member struct {
	role, name    string
	args          []string
	now           *process
	http          wire
	control, data wire // of a ctx worker
	starts        int
}

// arena is a cluster for chaos.
type arena struct {
	net      *network
	front    *process
	ctx, gen []*member
}

// model returns what engines are to load: the tiny random model, unless path names another one.
func chaosModel(t *testing.T, path string) string {
	t.Helper()
	if path != "" {
		return path
	}
	dir := t.TempDir()
	if err := tinymodel.WriteServable(dir, 1); err != nil {
		t.Fatal(err)
	}
	return dir
}

// newArena starts two ctx and two gen workers of a model and a frontend.
func newArena(t *testing.T, model string, kvTokens int, yaml string) *arena {
	t.Helper()
	a := &arena{net: newNetwork()}
	for i := range 2 {
		a.ctx = append(a.ctx, a.newMember(t, "ctx", i, model, kvTokens))
		a.gen = append(a.gen, a.newMember(t, "gen", i, model, kvTokens))
	}
	at := func(ms []*member) (out []*process) {
		for _, m := range ms {
			out = append(out, &process{url: "http://" + m.http.Listen})
		}
		return out
	}
	a.front = startFrontend(t, at(a.ctx), at(a.gen), chaosFront+yaml)
	return a
}

func (a *arena) newMember(t *testing.T, role string, i int, model string, kvTokens int) *member {
	t.Helper()
	const host = "127.0.0.1"
	m := &member{role: role, name: role + strconv.Itoa(i)}
	port := steadyPort(t, host)
	own, control, data := host, 0, 0
	if role == "ctx" {
		// Who fetches blocks connects to the advertised address, where the proxies listen at the worker's own ports.
		own = fmt.Sprintf("127.0.0.%d", 2+i)
		control, data = steadyPort(t, host, own), steadyPort(t, host, own)
		for control == data {
			data = steadyPort(t, host, own)
		}
		at := func(h string, p int) string { return net.JoinHostPort(h, strconv.Itoa(p)) }
		m.control = a.net.between(t, m.name+" control", at(own, control), at(host, control))
		m.data = a.net.between(t, m.name+" data", at(own, data), at(host, data))
	}
	file := writeFile(t, m.name+".yaml", fmt.Sprintf(chaosYAML, chaosName, kvTokens, control, data, own))
	m.args = []string{"serve", model, "--role", role, "--port", strconv.Itoa(port), "-c", file, "--threads", "1"}
	m.http = a.net.between(t, m.name, host+":0", net.JoinHostPort(host, strconv.Itoa(port)))
	m.start(t)
	return m
}

// chaosName is the model's name for clients.
const chaosName = "tiny"

func (m *member) start(t *testing.T) {
	t.Helper()
	m.starts++
	m.now = start(t, m.name+"."+strconv.Itoa(m.starts), engineBin, m.args...)
}

// kill ends the process without warning.
func (m *member) kill(t *testing.T) {
	t.Helper()
	m.now.signal(t, syscall.SIGKILL)
	<-m.now.done
}

func (a *arena) members() []*member { return append(append([]*member{}, a.ctx...), a.gen...) }

func (a *arena) workers() (out []*process) {
	for _, m := range a.members() {
		out = append(out, m.now)
	}
	return out
}

// whole waits until the frontend would choose each of the workers.
func (a *arena) whole(t *testing.T) {
	t.Helper()
	var last string
	if !eventually(settleLimit, func() bool { last = a.down(t); return last == "" }) {
		t.Errorf("%s is not back after %v", last, settleLimit)
	}
}

// down names a worker that the frontend would not choose, or whose present life it does not know.
func (a *arena) down(t *testing.T) string {
	t.Helper()
	type worker struct {
		Routable    bool   `json:"routable"`
		Incarnation string `json:"incarnation"`
	}
	var info struct {
		Workers struct {
			Context    []worker `json:"context_servers"`
			Generation []worker `json:"generation_servers"`
		} `json:"current_workers"`
	}
	getJSON(t, a.front.url+"/cluster_info", &info)
	seen := append(info.Workers.Context, info.Workers.Generation...)
	if len(seen) != len(a.members()) {
		return fmt.Sprintf("one of %d workers", len(seen))
	}
	for i, m := range a.members() {
		var own struct{ Incarnation string }
		getJSON(t, m.now.url+"/server_info", &own)
		if !seen[i].Routable || seen[i].Incarnation != own.Incarnation {
			return m.now.name
		}
	}
	return ""
}

// dump shows what all processes do now.
func (a *arena) dump(t *testing.T) {
	t.Helper()
	for _, p := range append(a.workers(), a.front) {
		select {
		case <-p.done:
			t.Logf("%s has ended", p.name)
			continue
		default:
		}
		text := "of a worker that stands still"
		resp, err := quick.Get(p.admin + "/debug/pprof/goroutine?debug=1")
		if err == nil {
			text = tail(readSome(resp), 20000)
		}
		t.Logf("--- goroutines of %s: %v\n%s", p.name, err, text)
		if p != a.front {
			if resp, err := quick.Get(p.url + "/kv_cache_stats"); err == nil {
				t.Logf("%s: %s", p.name, readSome(resp))
			}
		}
	}
	if resp, err := quick.Get(a.front.url + "/cluster_info"); err == nil {
		t.Log(readSome(resp))
	}
}
