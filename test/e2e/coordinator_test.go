//go:build e2e

package e2e

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"tandem/test/etcd"
	"tandem/test/ports"
)

// sharing starts a frontend that shares its conversations through uri.
func sharing(t *testing.T, name string, port int, uri string, ctx, gen []*stub) *process {
	t.Helper()
	file := writeFile(t, "cluster.yaml", fmt.Sprintf(`
hostname: 127.0.0.1
port: %d
expose_routing_headers: true
internal_request_auth_key: %s
disagg_coordinator_url: %s
context_servers: {urls: [%s], router: {type: conversation}}
generation_servers: {urls: [%s], router: {type: conversation}}
`, port, clusterKey, uri, ids(ctx), ids(gen)))
	return start(t, name, frontendBin, "serve", "-c", file)
}

// turnAt is one turn of a conversation at a frontend; it tells where it ran.
func turnAt(t *testing.T, p *process, id string) string {
	t.Helper()
	a := (&rig{process: p}).ask(t, textPath, helloText, "X-Session-ID", id)
	a.wantOK(t, "ABC")
	return a.header.Get("X-Disagg-Ctx-Server") + " and " + a.header.Get("X-Disagg-Gen-Server")
}

// TestConversationsOutliveFrontends: two frontends, one of which is killed and starts anew. Every conversation goes on at
// its workers, at either frontend, whether etcd or a frontend is what they share, and in the latter case also when it is
// that frontend which restarts.
func TestConversationsOutliveFrontends(t *testing.T) {
	for _, kind := range []string{"etcd", "frontend"} {
		t.Run(kind, func(t *testing.T) {
			f := &farm{}
			var ctx, gen []*stub
			for i := range 4 {
				ctx, gen = append(ctx, f.newStub(t, "ctx"+strconv.Itoa(i), "context")), append(gen, f.newStub(t, "gen"+strconv.Itoa(i), "generation"))
			}
			ports := []int{ports.Free(t), ports.Free(t)}
			uri := "http://127.0.0.1:" + strconv.Itoa(ports[0])
			if kind == "etcd" {
				uri = "etcd://" + etcd.Start(t).Addr
			}
			a := sharing(t, "a", ports[0], uri, ctx, gen)
			b := sharing(t, "b", ports[1], uri, ctx, gen)
			homes := map[string]string{}
			for i := range 6 {
				id := "c" + strconv.Itoa(i)
				homes[id] = turnAt(t, []*process{a, b}[i%2], id)
			}
			check := func(when string) {
				t.Helper()
				for id, home := range homes {
					for _, p := range []*process{a, b} {
						if at := turnAt(t, p, id); at != home {
							t.Errorf("%s: %s at %s went to %s, its home is %s", when, id, p.name, at, home)
						}
					}
				}
			}
			check("at first")
			homes["alone"] = turnAt(t, a, "alone") // b never sees it before a restarts
			if at := turnAt(t, a, "alone"); at != homes["alone"] {
				t.Error("a conversation moved at one frontend")
			}
			for _, p := range []**process{&b, &a} {
				name, port := (*p).name, ports[1]
				if name == "a" {
					port = ports[0]
					time.Sleep(2 * time.Second) // b mirrors each second
				}
				(*p).signal(t, syscall.SIGKILL)
				(*p).wait(t, stopLimit)
				*p = sharing(t, name, port, uri, ctx, gen)
				if name == "a" && kind == "frontend" {
					time.Sleep(2 * time.Second) // b gives back what it has
				}
				for i := range 3 { // the new one's turns begin where a fresh router begins
					turnAt(t, *p, fmt.Sprintf("new %s %d", name, i))
				}
				check("after the restart of " + name)
			}
			if kind == "etcd" {
				if text := get(t, a.url+"/metrics"); metric(text, `tandem_conversation_lookups_total{outcome="found"}`) == "" {
					t.Error("the restarted frontend found nothing")
				}
			}
		})
	}
}

// TestFrontendNeedsItsCoordinator: one that cannot be reached at the start is an error that names the key.
func TestFrontendNeedsItsCoordinator(t *testing.T) {
	t.Parallel()
	f := &farm{}
	ctx, gen := f.newStub(t, "ctx0", "context"), f.newStub(t, "gen0", "generation")
	file := writeFile(t, "cluster.yaml", fmt.Sprintf(`
hostname: 127.0.0.1
server_start_timeout_sec: 1
disagg_coordinator_url: http://127.0.0.1:%d
context_servers: {urls: [%q], router: {type: conversation}}
generation_servers: {urls: [%q]}
`, ports.Free(t), ctx.id, gen.id))
	p, _ := launch(t, "frontend", frontendBin, "serve", "--port", "0", "-c", file)
	if code := p.wait(t, settleLimit); code != 1 || !strings.Contains(p.log.String(), "disagg_coordinator_url") {
		t.Errorf("ended with %d:\n%s", code, p.log.String())
	}
}
