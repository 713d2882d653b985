package discovery

import (
	"testing"

	"pgregory.net/rapid"
)

// TestKeptLists: after any changes the lists are those that a table without kept ones makes, and who has one may change it.
func TestKeptLists(t *testing.T) {
	hosts := []string{"a:1", "b:1", "c:1"}
	roles := []Role{Context, Generation, Mixed}
	rapid.Check(t, func(t *rapid.T) {
		tb := newTable()
		host, role := rapid.SampledFrom(hosts), rapid.SampledFrom(roles)
		now := 0.0
		for _, id := range hosts {
			_ = tb.add(id, "http://"+id, Generation) // each once
			tb.probed(at(0), id, good(Mixed, "1"))
		}
		changes := map[string]func(*rapid.T){
			"members": func(t *rapid.T) {
				var list []Member
				for _, id := range rapid.SliceOfNDistinct(host, 0, 3, rapid.ID).Draw(t, "members") {
					list = append(list, Member{WorkerID: rapid.StringN(1, 1, 1).Draw(t, "worker"), ID: id, URL: "http://" + id, Role: role.Draw(t, "role")})
				}
				tb.setMembers(at(now), list)
			},
			"probe": func(t *rapid.T) {
				r := bad
				if rapid.Bool().Draw(t, "good") {
					r = good(role.Draw(t, "role"), rapid.SampledFrom([]string{"1", "2"}).Draw(t, "process"))
					r.info.Fingerprint = rapid.SampledFrom([]string{"f", "g"}).Draw(t, "model")
					r.models = rapid.SampledFrom([][]Model{nil, {{ID: "tiny"}}, {{ID: "other"}}}).Draw(t, "models")
				}
				tb.probed(at(now), host.Draw(t, "host"), r)
			},
			"legs": func(t *rapid.T) {
				id, connected := host.Draw(t, "host"), rapid.Bool().Draw(t, "connected")
				for range breakerCount {
					tb.legEnded(at(now), id, connected)
				}
			},
			"later": func(t *rapid.T) {
				now += rapid.Float64Range(1, 1000).Draw(t, "seconds")
				for _, e := range tb.order {
					if tb.forgotten(at(now), e) {
						break
					}
				}
			},
			"": func(t *rapid.T) {
				for _, leg := range roles {
					for _, model := range []string{"", "tiny", "none"} {
						got := tb.list(listKey{leg, model})
						fresh := &table{order: tb.order, byID: tb.byID}
						if want := ids(fresh.list(listKey{leg, model})); ids(got) != want {
							t.Fatalf("%s of %q: %q, want %q", leg, model, ids(got), want)
						}
						clear(got)
					}
				}
			},
		}
		t.Repeat(changes)
	})
}

func TestFewListsAreKept(t *testing.T) {
	tb := twoByTwo(t)
	for i := range 10 * maxLists {
		tb.list(listKey{Context, string(rune('a' + i))})
	}
	if n := len(tb.lists); n > maxLists {
		t.Errorf("%d lists are kept, clients can name as many models as they like", n)
	}
}
