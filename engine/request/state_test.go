package request

import "testing"

func TestTransitionTable(t *testing.T) {
	type arrow struct{ from, to State }
	for _, a := range []arrow{
		{New, Waiting},
		{New, GenInit},
		{Waiting, Prefill},
		{Paused, Prefill},
		{Prefill, Decode},
		{Prefill, CtxSend},
		{Prefill, Waiting},
		{New, CtxSend},
		{GenInit, Waiting},
		{GenInit, GenRecv},
		{GenRecv, GenReady},
		{GenRecv, Prefill},
		{GenRecv, Waiting},
		{GenReady, Decode},
		{Decode, Paused},
		{CtxSend, Closed},
		{New, Fork},
		{Fork, Decode},
		{Fork, GenReady},
		{Fork, Paused},
		{Closed, Retired},
	} {
		if !a.from.CanBecome(a.to) {
			t.Errorf("%v must be able to become %v", a.from, a.to)
		}
	}
	for _, a := range []arrow{
		{Waiting, Decode}, {Closed, Decode}, {Retired, Closed}, {GenRecv, Decode}, {GenRecv, Paused}, {CtxSend, Paused}, {Last, Paused}, {Retired, Waiting},
	} {
		if a.from.CanBecome(a.to) {
			t.Errorf("%v must not become %v", a.from, a.to)
		}
	}
	for s := New; s < numStates; s++ {
		if alive := s.Alive(); alive && !s.CanBecome(Closed) {
			t.Errorf("%v cannot be closed", s)
		}
		if s.String() == "INVALID" {
			t.Errorf("state %d has no name", s)
		}
	}
	if numStates.CanBecome(Closed) || Closed.CanBecome(numStates) || numStates.String() != "INVALID" {
		t.Error("an invalid state is accepted")
	}
}
