package runner

import (
	"strings"
	"testing"
	"time"

	"tandem/engine/comm"
	"tandem/engine/request"
)

// TestScenario20AKilledRankEndsAll has four ranks, each a process of its own, of which the third
// is gone at its 30th exchange: all others end, and so does every request.
func TestScenario20AKilledRankEndsAll(t *testing.T) {
	const dead = 2
	w := newWorld(t, worldConfig{
		size: 4, spans: []comm.Span{{First: 0, Last: 0}, {First: 1, Last: 1}, {First: 2, Last: 2}, {First: 3, Last: 3}},
		wrap: func(g *comm.Group, rank int) comm.Comm {
			if rank != dead {
				return g.Rank(rank)
			}
			return comm.NewFaulty(g, rank, &comm.Rule{Fault: comm.FaultCut, Rank: dead, Op: comm.OpExchange, Iter: 30})
		},
	})
	outs := burst(t, w.engines[0], 16, 240, func(_ int, r *request.Request) { r.ConversationID = "" })
	for i, err := range w.fall(30 * time.Second) {
		if i != dead && (err == nil || !strings.Contains(err.Error(), "rank 2 left the group")) {
			t.Errorf("process %d ended with %v", i, err)
		}
	}
	for i, o := range outs {
		if o.Err == nil || o.Err.Code != request.EngineDead {
			t.Errorf("request %d ended %q %v", i, o.Finish, o.Err)
		}
	}
	w.close()
}
