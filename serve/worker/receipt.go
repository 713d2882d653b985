package worker

import (
	"strconv"

	"tandem/engine/request"
	"tandem/engine/runner"
	"tandem/serve/openai"
)

// receipt says on which rank a leg ran and why, as X-Tandem-Route shows it:
// "ctx;rank=2;reason=sticky". A whole request is a gen leg, as in signatures.
func receipt(kind request.Kind, r runner.Route) string {
	leg := "gen"
	if kind == request.ContextOnly {
		leg = "ctx"
	}
	return leg + ";rank=" + strconv.Itoa(r.Rank) + ";reason=" + r.Reason
}

// receipt puts the request's place into the headers. Submit has given it one, so
// streams have it too.
func (x *exchange) receipt(s Stream) {
	r, ok := s.Route()
	if !ok {
		return
	}
	x.rank = &r.Rank
	if x.s.cfg.ExposeRouting || x.job.in.returnRoute {
		x.w.Header().Set(openai.HeaderRoute, receipt(x.job.req.Kind, r))
	}
}
