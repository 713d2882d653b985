package des

import (
	"strconv"
	"strings"

	"tandem/serve/discovery"
	"tandem/serve/router"
)

// asWorker is the name of a rank in a wrapper's router.
func (in *instance) asWorker(rank int) string { return in.ID + "/" + strconv.Itoa(rank) }

// liveRanks are the ranks that a wrapper may choose, as workers.
func (s *Sim) liveRanks() (out []discovery.Instance) {
	for _, in := range live(s.ctx) {
		info := *in.Info
		info.ADPSize = 1
		for rank := range s.cfg.Ctx.Ranks {
			out = append(out, discovery.Instance{ID: s.byID[in.ID].asWorker(rank), URL: in.URL, Info: &info})
		}
	}
	return out
}

// rankOf finds the rank that a wrapper's router chose.
func (s *Sim) rankOf(worker string) (*instance, int) {
	at := strings.LastIndexByte(worker, '/')
	rank, _ := strconv.Atoi(worker[at+1:])
	return s.byID[worker[:at]], rank
}

// tellRanks gives a frontend's wrapper the events of an instance, rank by rank.
func (in *instance) tellRanks(f *frontend, life string, events []router.Event) {
	l, ok := f.ranks.(router.Listener)
	if !ok {
		return
	}
	byRank := make([][]router.Event, in.g.Ranks)
	for _, e := range events {
		rank := e.Rank
		e.Rank = 0
		byRank[rank] = append(byRank[rank], e)
	}
	for rank, some := range byRank {
		if len(some) > 0 {
			l.Observe(in.asWorker(rank), life, some)
		}
	}
}

// forgetRanks drops what a wrapper knows of an instance that has gone.
func (in *instance) forgetRanks(f *frontend) {
	if f.ranks == nil {
		return
	}
	for rank := range in.g.Ranks {
		f.ranks.Forget(in.asWorker(rank))
	}
}
