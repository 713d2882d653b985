package disagg

import (
	"sync"
	"unicode/utf8"

	"tandem/serve/discovery"
	"tandem/serve/router"
	"tandem/serve/trace"
)

// routeLog writes what routers are asked, and what they answer, into the capture. Its lock makes the order of the lines that of
// the decisions, so it is not taken unless somebody wants the trace.
type routeLog struct {
	mu sync.Mutex
	n  uint64
}

// route asks the router of a leg.
func (s *Server) route(role discovery.Role, req router.Request) (router.Selection, error) {
	r := s.routers[role]
	if !s.capture.Routes() {
		return r.Select(req) // callers compare with router.ErrNoServers
	}
	c := s.chosen(&req)
	c.Router = r.Kind()
	list := req.Candidates
	req.Candidates = func() []discovery.Instance {
		all := list()
		c.Candidates, c.Capacity = c.Candidates[:0], c.Capacity[:0] // some routers ask twice
		for _, in := range all {
			c.Candidates, c.Capacity = append(c.Candidates, in.ID), append(c.Capacity, capacity(in.Info))
			if in.Info != nil && c.BlockSize == 0 {
				c.BlockSize = in.Info.TokensPerBlock
			}
		}
		return all
	}
	l := &s.routed
	l.mu.Lock()
	defer l.mu.Unlock()
	sel, err := r.Select(req)
	l.n++
	number := l.n
	c.Number, c.HashIDs = number, s.capture.Hashes(req.Tokens, c.BlockSize, req.Salt)
	if err == nil {
		c.Server, c.Outcome = sel.Instance.ID, string(sel.Outcome)
		sel.Reservation = sel.Reservation.Around(func(release func(), success bool) {
			l.mu.Lock()
			defer l.mu.Unlock()
			release()
			s.capture.Release(number, success, s.now())
		})
	}
	s.capture.Choose(c, s.now())
	return sel, err
}

// chosen is a request to a router as the trace has it.
func (s *Server) chosen(req *router.Request) *trace.Chosen {
	c := &trace.Chosen{
		Generation: req.Generation, RoutingID: s.capture.Name(req.RoutingID), Conversation: s.capture.Name(req.ConversationID),
		Tokens: len(req.Tokens), Salt: s.capture.Name(req.Salt), MaxTokens: req.MaxTokens, Exclude: req.Exclude,
	}
	if req.Text != "" && (req.Tokens == nil || req.Learned) {
		points := make([]int32, 0, utf8.RuneCountInString(req.Text))
		for _, r := range req.Text {
			points = append(points, r)
		}
		c.Text, c.TextBytes, c.TextIDs = len(points), len(req.Text), s.capture.Hashes(points, trace.TextBlock, req.Salt)
	}
	return c
}

// capacity is how many requests a worker runs at once, 0 = it does not tell.
func capacity(info *discovery.ServerInfo) int {
	if info == nil {
		return 0
	}
	return info.MaxBatchSize * max(1, info.ADPSize)
}
