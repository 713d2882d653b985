package des

import (
	"strconv"
	"strings"

	"tandem/serve/discovery"
	"tandem/serve/router"
)

// asWorker is the name of a rank in a wrapper's router.
func (in *instance) asWorker(rank int) string { return in.ID + "/" + strconv.Itoa(rank) }

// nameRank lets the wrapper's router choose a rank of a leg's instance.
func (l *leg) nameRank() {
	info := *l.in.Info
	info.ADPSize = 1
	ranks := make([]discovery.Instance, l.in.g.Ranks)
	for i := range ranks {
		ranks[i] = discovery.Instance{ID: l.in.asWorker(i), URL: l.in.URL, Info: &info}
	}
	sel, err := l.j.f.ranks.Select(router.Request{
		Tokens: l.j.prompt, MaxTokens: l.j.want, Candidates: func() []discovery.Instance { return ranks },
	})
	if err != nil {
		return // there is no rank to name
	}
	_, rank, _ := strings.Cut(sel.Instance.ID, "/")
	l.req.DPRank, _ = strconv.Atoi(rank)
	instance := l.charge
	l.charge = sel.Reservation.Around(func(release func(), success bool) {
		release()
		instance.Release(success)
	})
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
