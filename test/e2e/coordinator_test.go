//go:build e2e

package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"tandem/serve/disagg"
	registry "tandem/serve/discovery/cluster"
	etcdstore "tandem/serve/discovery/etcd"
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

// coordinator is what two frontends share their conversations through: etcd, or the first one itself.
type coordinator struct {
	aURI, bURI string
	homes      disagg.Homes // what is stored
	polls      atomic.Int64 // how often b has read all changes of a
}

func newCoordinator(t *testing.T, kind string, port int) *coordinator {
	t.Helper()
	c := &coordinator{}
	if kind == "etcd" {
		server := etcd.Start(t)
		c.aURI = "etcd://" + server.Addr
		c.bURI = c.aURI
		store, err := etcdstore.New([]string{server.Addr}, etcdstore.Access{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { store.Close() })
		c.homes = etcdstore.NewHomes(store, "/disagg//homes/")
		return c
	}
	c.aURI = "http://127.0.0.1:" + strconv.Itoa(port)
	at, _ := url.Parse(c.aURI)
	proxy := httputil.NewSingleHostReverseProxy(at)
	proxy.ModifyResponse = func(r *http.Response) error {
		if r.Request.URL.Path == "/homes/changes" && r.StatusCode == http.StatusOK {
			c.polls.Add(1)
		}
		return nil
	}
	proxy.ErrorLog = log.New(io.Discard, "", 0)
	server := httptest.NewServer(proxy)
	t.Cleanup(server.Close)
	c.bURI = server.URL
	c.homes = registry.NewHomesClient(registry.ClientConfig{URL: c.aURI, Key: []byte(clusterKey)})
	return c
}

// keeps tells whether the homes of a conversation are stored.
func (c *coordinator) keeps(t *testing.T, id string) bool {
	t.Helper()
	sum := sha256.Sum256([]byte(id))
	for _, role := range []string{"context", "generation"} {
		if at, err := c.homes.Find(t.Context(), role+"/"+hex.EncodeToString(sum[:16])); err != nil || at == "" {
			return false
		}
	}
	return true
}

// begin takes the first turn of a conversation and returns where it ran. If storing takes too long the next turn does it.
func (c *coordinator) begin(t *testing.T, p *process, id string) (home string) {
	t.Helper()
	home = turnAt(t, p, id)
	within(t, "the homes of "+id+" are stored", func() bool {
		if c.keeps(t, id) {
			return true
		}
		home = turnAt(t, p, id)
		return false
	})
	return home
}

// mirrored waits until b has all that a has now.
func (c *coordinator) mirrored(t *testing.T) {
	t.Helper()
	if c.aURI == c.bURI { // nobody mirrors etcd
		return
	}
	from := c.polls.Load()
	within(t, "b mirrors", func() bool { return c.polls.Load() >= from+2 }) // the second one began after now
}

// goesOn wants a conversation's turn at its home. A store that does not answer at once may make a turn go elsewhere, and the
// frontend warns of it.
func goesOn(t *testing.T, p *process, id, home, when string) {
	t.Helper()
	at := turnAt(t, p, id)
	if at == home {
		return
	}
	late := strings.Contains(p.log.String(), disagg.WarnHomes)
	if !late || !eventually(settleLimit, func() bool { at = turnAt(t, p, id); return at == home }) {
		t.Errorf("%s: %s at %s went to %s, its home is %s; the store was late: %t", when, id, p.name, at, home, late)
	}
}

// TestConversationsOutliveFrontends: two frontends, one of which is killed and starts anew. Every conversation goes on at
// its workers, at either frontend, whether etcd or a frontend is what they share, and in the latter case also when it is
// that frontend which restarts.
func TestConversationsOutliveFrontends(t *testing.T) {
	t.Parallel() // mostly waits
	for _, kind := range []string{"etcd", "frontend"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			f := &farm{}
			var ctx, gen []*stub
			for i := range 4 {
				ctx, gen = append(ctx, f.newStub(t, "ctx"+strconv.Itoa(i), "context")), append(gen, f.newStub(t, "gen"+strconv.Itoa(i), "generation"))
			}
			ports := []int{ports.Free(t), ports.Free(t)}
			c := newCoordinator(t, kind, ports[0])
			a := sharing(t, "a", ports[0], c.aURI, ctx, gen)
			b := sharing(t, "b", ports[1], c.bURI, ctx, gen)
			homes := map[string]string{}
			for i := range 6 {
				id := "c" + strconv.Itoa(i)
				homes[id] = c.begin(t, []*process{a, b}[i%2], id)
			}
			check := func(when string) {
				t.Helper()
				for id, home := range homes {
					for _, p := range []*process{a, b} {
						goesOn(t, p, id, home, when)
					}
				}
			}
			check("at first")
			homes["alone"] = c.begin(t, a, "alone") // b never sees it before a restarts
			goesOn(t, a, "alone", homes["alone"], "at one frontend")
			for _, p := range []**process{&b, &a} {
				name, port, uri := (*p).name, ports[1], c.bURI
				if name == "a" {
					port, uri = ports[0], c.aURI
					c.mirrored(t)
				}
				(*p).signal(t, syscall.SIGKILL)
				(*p).wait(t, stopLimit)
				*p = sharing(t, name, port, uri, ctx, gen)
				for id := range homes { // if it was a that kept them, b gives back what it has
					within(t, id+" is stored again", func() bool { return c.keeps(t, id) })
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
