package disagg

import (
	"tandem/serve/discovery"
	"tandem/serve/router"
)

// consider looks at what the best gen worker has of the prompt. If little is left to compute, that worker runs the whole
// request and no blocks travel; else it is kept for the gen leg, which is then sure of what was found.
func (s *Server) consider(p *RoutePlan) {
	if p.Path == PathCtxGen && p.Req.Whole() { // what is told of the prompt is not handed over
		p.Path, p.bypass = PathGenOnly, true
		return
	}
	if !s.cfg.Conditional || p.Path != PathCtxGen {
		return
	}
	list := func() []discovery.Instance { return p.able(s.reg.Candidates(discovery.Generation, p.Req.Model)) }
	sel, err := s.route(discovery.Generation, p.routing(discovery.Generation, list, nil))
	if err != nil {
		return // the gen leg will say what is wrong
	}
	s.homes.keep(p, discovery.Generation, s.routers[discovery.Generation])
	p.reserved = sel
	// Without token ids the match is a guess in other units.
	if p.tokens != nil && sel.Matched > 0 && sel.Prompt-sel.Matched <= s.cfg.MaxLocalPrefill {
		p.Path, p.bypass = PathGenOnly, true
	}
}

// firstGen returns the reserved gen worker if it may still be used, else a new choice.
func (s *Server) firstGen(p *RoutePlan, list func() []discovery.Instance, t *tries, strict bool) (router.Selection, error) {
	sel := p.reserved
	if p.reserved = (router.Selection{}); sel.Reservation != nil {
		for _, in := range list() {
			if in.ID == sel.Instance.ID {
				return sel, nil
			}
		}
		sel.Reservation.Release(false)
	}
	return s.choose(p, discovery.Generation, list, t, strict)
}
