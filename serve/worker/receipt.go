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

// wantsReceipt tells whether the caller is to learn the rank, if there is one.
func (x *exchange) wantsReceipt() bool {
	return (x.s.cfg.ExposeRouting || x.job.in.returnRoute) && adpSize(x.job.info) > 1
}

// receipt puts the request's place into the headers, while they are not out. It
// is false when a receipt is due that cannot be given yet.
func (x *exchange) receipt(s Stream) bool {
	if !x.wantsReceipt() {
		return true
	}
	r, ok := s.Route()
	if ok {
		x.w.Header().Set(openai.HeaderRoute, receipt(x.job.req.Kind, r))
	}
	return ok
}

// appendReceipt writes the comment that brings a receipt after the headers.
func appendReceipt(dst []byte, kind request.Kind, r runner.Route) []byte {
	dst = append(dst, ": "+openai.HeaderRoute+": "...)
	dst = append(dst, receipt(kind, r)...)
	return append(dst, '\n', '\n')
}
