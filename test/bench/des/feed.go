package des

import (
	"time"

	"tandem/engine/executor"
	"tandem/serve/router"
)

// feed tells frontends what ranks can reuse, as workers with an event buffer do.
type feed struct {
	next  []uint64 // by rank: id of the next event
	begun []bool
}

// most is how many events one message carries.
const most = 1024

// publish sends the changes since the last time to all frontends that listen.
func (in *instance) publish() {
	if in.g.Core.EventBuffer == 0 || !in.g.Core.BlockReuse {
		return
	}
	var out []router.Event
	for i, r := range in.ranks {
		record := r.core.CacheEvents()
		for {
			events, next, _, ok := record.Read(in.feed.next[i], most)
			if !ok || !in.feed.begun[i] {
				for _, e := range r.core.CacheSnapshot() {
					out = append(out, translated(i, e))
				}
				in.feed.next[i], in.feed.begun[i] = record.Next(), true
				continue
			}
			in.feed.next[i] = next
			for _, e := range events {
				out = append(out, translated(i, e))
			}
			if len(events) == 0 {
				break
			}
		}
	}
	if len(out) == 0 {
		return
	}
	id, life := in.ID, in.Info.Incarnation
	in.sim.after(in.sim.cfg.Net.Hop, func() {
		for _, f := range in.sim.fronts {
			for _, r := range []router.Router{f.ctx, f.gen} {
				if l, ok := r.(router.Listener); ok {
					l.Observe(id, life, out)
				}
			}
			in.tellRanks(f, life, out)
		}
	})
}

func translated(rank int, e executor.CacheEvent) router.Event {
	return router.Event{ID: e.ID, Rank: rank, Gap: e.Gap, Kind: router.EventKind(e.Kind), Blocks: e.Blocks}
}

// feedEvery is the least time between two messages of an instance.
const feedEvery = 10 * time.Millisecond

// tellFrontends publishes unless it did just now.
func (in *instance) tellFrontends() {
	if in.sim.now >= in.fed+feedEvery {
		in.fed = in.sim.now
		in.publish()
	}
}
