package scheduler

import (
	"testing"

	"tandem/engine/request"
)

// pausing makes a scheduler of MAX_UTILIZATION over blocks of four tokens.
func pausing(t *testing.T, q Queue, blocks int) (*Scheduler, *pool) {
	t.Helper()
	p := &pool{total: blocks}
	s, err := New(Config{
		Policy: MaxUtilization, Chunking: FirstCome, Queue: q, BlockTokens: 4, MaxBatch: 8, MaxNumTokens: 32, ChunkPrefill: true, MaxRecv: 8,
	}, p, p)
	if err != nil {
		t.Fatal(err)
	}
	return s, p
}

// runs puts a request with n blocks, all full, among those that run.
func runs(s *Scheduler, p *pool, q Seq, n int) *Seq {
	q.Table, _ = p.Take(nil, n)
	s.put(&q, inRunning)
	return &q
}

func decodes(number uint64, blocks int) Seq {
	return Seq{Number: number, State: request.Decode, Known: 4*blocks + 1, Computed: 4 * blocks, Complete: blocks + 4}
}

// TestAPauseAdmitsNobody: what a pause frees is for the request that caused it, not
// for a pull or a prompt that goes first.
func TestAPauseAdmitsNobody(t *testing.T) {
	s, p := pausing(t, Priority, 9)
	old, young := decodes(2, 2), decodes(3, 7)
	old.Priority = 1
	runs(s, p, old, 2)
	victim := runs(s, p, young, 7)
	s.EnqueueGen(&Seq{Number: 1, State: request.GenInit, Known: 5, Offered: 4, Complete: 2})
	s.Enqueue(&Seq{Number: 4, State: request.Waiting, Priority: 1, Known: 8, Complete: 3})
	plan := s.Schedule(Limits{MaxTokens: 32, MaxBatch: 8})
	if len(plan.Paused) != 1 || plan.Paused[0] != victim || len(plan.Rows) != 1 {
		t.Fatalf("%d paused, %d rows: not what is to be tested", len(plan.Paused), len(plan.Rows))
	}
	if len(plan.Admitted)+len(plan.Receive) > 0 {
		t.Errorf("%d admitted and %d pulled in a step with a pause", len(plan.Admitted), len(plan.Receive))
	}
	victim.State = request.Paused
	if plan = s.Schedule(Limits{MaxTokens: 32, MaxBatch: 8}); len(plan.Receive) != 1 {
		t.Errorf("%d pulled in the step after it", len(plan.Receive))
	}
}

// TestAPauseRelievesNobody: nor is it for a short prompt behind a long one.
func TestAPauseRelievesNobody(t *testing.T) {
	for blocks, admitted := range map[int]int{34: 0, 40: 1} {
		s, p := pausing(t, Priority, blocks)
		old, long := decodes(1, 2), Seq{Number: 2, State: request.Prefill, Known: 100, Complete: 25, Priority: 1}
		old.Priority = 1
		runs(s, p, old, 2)
		runs(s, p, long, 25)
		runs(s, p, decodes(3, 7), 7)
		s.Enqueue(&Seq{Number: 4, State: request.Waiting, Priority: 1, Known: 4, Complete: 2})
		plan := s.Schedule(Limits{MaxTokens: 32, MaxBatch: 8})
		if len(plan.Paused) != 1-admitted || len(plan.Admitted) != admitted {
			t.Errorf("%d blocks: %d paused, %d admitted", blocks, len(plan.Paused), len(plan.Admitted))
		}
	}
}

// TestWhoSamplesItsLastTokenIsNoVictim: its answer is on its way, and with a ctx leg
// the blocks that go with it.
func TestWhoSamplesItsLastTokenIsNoVictim(t *testing.T) {
	s, p := pausing(t, FCFS, 6)
	old := runs(s, p, decodes(1, 2), 2)
	middle := runs(s, p, decodes(2, 2), 2)
	last := decodes(3, 2)
	last.Last, last.Ahead, last.Flying = true, true, 1
	runs(s, p, last, 2)
	plan := s.Schedule(Limits{MaxTokens: 32, MaxBatch: 8, Pending: true})
	if len(plan.Paused) != 1 || plan.Paused[0] != middle || len(plan.Rows) != 1 || plan.Rows[0].Seq != old {
		t.Errorf("paused %v, rows %v", plan.Paused, plan.Rows)
	}
}

// TestNoPullOvertakesWhoWasPaused: its blocks went to others once, and a stream of
// pulls would keep it out for ever.
func TestNoPullOvertakesWhoWasPaused(t *testing.T) {
	for paused, pulls := range map[uint64]int{1: 0, 3: 1} {
		s, p := pausing(t, FCFS, 8)
		runs(s, p, Seq{Number: 0, State: request.Decode, Known: 2, Computed: 1, Complete: 8}, 4)
		s.Enqueue(&Seq{Number: paused, State: request.Paused, Known: 20, Complete: 6}) // no room yet
		s.EnqueueGen(&Seq{Number: 2, State: request.GenInit, Known: 5, Offered: 4, Complete: 2})
		if plan := s.Schedule(Limits{MaxTokens: 32, MaxBatch: 8}); len(plan.Receive) != pulls {
			t.Errorf("request 2 beside %d, which was paused: %d pulls, want %d", paused, len(plan.Receive), pulls)
		}
	}
}

// TestReliefWaitsForStepsOfThePaused: a short prompt behind a long one is not
// admitted while steps run that have rows of it.
func TestReliefWaitsForStepsOfThePaused(t *testing.T) {
	for flying, admitted := range []int{1, 0} {
		s, p := pausing(t, FCFS, 40)
		runs(s, p, Seq{Number: 1, State: request.Prefill, Known: 100, Complete: 25}, 25)
		s.Enqueue(&Seq{Number: 2, State: request.Paused, Known: 4, Complete: 2, Flying: flying})
		if plan := s.Schedule(Limits{MaxTokens: 32, MaxBatch: 8, Pending: true}); len(plan.Admitted) != admitted {
			t.Errorf("with %d steps that run %d are admitted", flying, len(plan.Admitted))
		}
	}
}
