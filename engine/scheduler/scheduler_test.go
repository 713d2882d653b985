package scheduler

import (
	"testing"

	"pgregory.net/rapid"

	"tandem/engine/request"
)

// pool counts blocks and matches nothing.
type pool struct{ total, used int }

func (p *pool) Total() int { return p.total }
func (p *pool) Free() int  { return p.total - p.used }
func (p *pool) Take(t []int32, n int) ([]int32, bool) {
	if n > p.Free() {
		return t, false
	}
	p.used += n
	return append(t, make([]int32, n)...), true
}
func (p *pool) Release(t []int32)   { p.used -= len(t) }
func (p *pool) Match(*Seq) Match    { return Match{} }
func (p *pool) Use(q *Seq, _ Match) { q.Table = q.Table[:0] }
func (p *pool) Expect(*Seq, int)    {}

// TestBorrowersAreAdmittedAsPrefills proves the order between requests that
// borrow and those that do not, and what a borrower takes.
func TestBorrowersAreAdmittedAsPrefills(t *testing.T) {
	for _, tc := range []struct {
		name           string
		policy         Policy
		older, younger int // tokens of a plain request before and after the borrower
		borrower       int // its tokens, the first 8 of them offered
		hold           bool
		pulls          bool
		admitted       int
		free, spare    int // of 10 blocks
	}{
		{"alone", GuaranteedNoEvict, 0, 0, 20, false, true, 0, 8, 5},
		{"with room to grow", MaxUtilization, 0, 0, 20, false, true, 0, 8, 7},
		{"behind an older one", GuaranteedNoEvict, 4, 0, 20, false, true, 1, 7, 4},
		{"which needs the room", GuaranteedNoEvict, 24, 0, 20, false, false, 1, 4, 4},
		{"which needs it now", MaxUtilization, 36, 0, 20, false, false, 1, 1, 0},
		{"before a younger one", GuaranteedNoEvict, 0, 4, 20, false, true, 1, 7, 4},
		{"no room, and none for what is younger", GuaranteedNoEvict, 0, 4, 44, false, false, 0, 10, 10},
		{"while nothing is admitted", GuaranteedNoEvict, 0, 0, 20, true, false, 0, 10, 10},
	} {
		p := &pool{total: 10}
		s, err := New(Config{
			Policy: tc.policy, Chunking: FirstCome, Queue: FCFS, BlockTokens: 4, MaxBatch: 4, MaxNumTokens: 100, MaxRecv: 1,
		}, p, p)
		if err != nil {
			t.Fatal(err)
		}
		for i, n := range []int{tc.older, tc.borrower, tc.younger} {
			q := &Seq{Number: uint64(i), Known: n, Complete: s.blocksFor(n), State: request.Waiting}
			switch {
			case i == 1:
				q.State, q.Offered, q.Borrows = request.GenInit, 8, true
				s.EnqueueGen(q)
			case n > 0:
				s.Enqueue(q)
			}
		}
		plan := s.Schedule(Limits{MaxTokens: 100, MaxBatch: 4, Hold: tc.hold})
		if len(plan.Receive) == 1 != tc.pulls || len(plan.Admitted) != tc.admitted || p.Free() != tc.free || s.Spare() != tc.spare {
			t.Errorf("%s: %d pulls, %d admitted, %d blocks free, %d to spare", tc.name, len(plan.Receive), len(plan.Admitted), p.Free(), s.Spare())
		}
	}
}

// TestAnyArrivals proves for random loads and budgets: these hold, chunks end on block
// ends, the oldest running request always advances, no pause happens under
// GUARANTEED_NO_EVICT, nothing is admitted in a step with a pause, and all
// requests end.
func TestAnyArrivals(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := 1 << rapid.IntRange(0, 4).Draw(t, "logB")
		cfg := Config{
			Policy:      rapid.SampledFrom([]Policy{GuaranteedNoEvict, MaxUtilization, StaticBatch}).Draw(t, "policy"),
			Chunking:    rapid.SampledFrom([]Chunking{FirstCome, EqualProgress}).Draw(t, "chunking"),
			Queue:       rapid.SampledFrom([]Queue{FCFS, Priority}).Draw(t, "queue"),
			BlockTokens: b, MaxBatch: rapid.IntRange(1, 8).Draw(t, "batch"), ChunkPrefill: rapid.Bool().Draw(t, "chunk"), MaxRecv: 4,
		}
		cfg.PrefillPerDecode = rapid.SampledFrom([]int{0, 1, 4}).Draw(t, "per decode")
		cfg.MaxNumTokens = cfg.MaxBatch + b + rapid.IntRange(0, 40).Draw(t, "rows")
		p := &pool{total: rapid.IntRange(1, 20).Draw(t, "N")}
		s, err := New(cfg, p, p)
		if err != nil {
			t.Fatal(err)
		}
		budget := map[*Seq]int{}
		left := rapid.IntRange(1, 20).Draw(t, "requests")
		steps := 0
		for number := uint64(0); ; steps++ {
			for left > 0 && rapid.Bool().Draw(t, "arrives") {
				left--
				number++
				q := &Seq{Number: number, Known: rapid.IntRange(1, max(1, p.total*b-1)).Draw(t, "P"), State: request.Waiting}
				g := rapid.IntRange(1, max(1, p.total*b-q.Known)).Draw(t, "G")
				q.Priority = float64(rapid.IntRange(0, 2).Draw(t, "priority")) / 2
				q.Complete = s.blocksFor(q.Known + g - 1)
				budget[q] = g
				s.Enqueue(q)
			}
			if left == 0 && s.Running()+s.Waiting() == 0 {
				break
			}
			if steps > 20000 {
				t.Fatal("no end")
			}
			step(t, s, budget)
		}
		if p.used != 0 {
			t.Fatalf("%d blocks left over", p.used)
		}
	})
}

func step(t *rapid.T, s *Scheduler, budget map[*Seq]int) {
	var oldest *Seq
	if len(s.running.list) > 0 {
		oldest = s.running.list[0]
	}
	lim := Limits{MaxTokens: s.cfg.MaxNumTokens, MaxBatch: s.cfg.MaxBatch}
	if rapid.IntRange(0, 3).Draw(t, "smaller") == 0 { // as after a failed step
		lim.MaxBatch = rapid.IntRange(1, lim.MaxBatch).Draw(t, "requests of the step")
		lim.MaxTokens = rapid.IntRange(lim.MaxBatch+s.cfg.BlockTokens, lim.MaxTokens).Draw(t, "rows of the step")
	}
	p := s.Schedule(lim)
	if len(p.Rows) == 0 && s.Waiting()+s.Running() > 0 {
		t.Fatal("ER-5: nothing runs")
	}
	if len(p.Paused) > 0 && (s.cfg.Policy != MaxUtilization || len(p.Admitted) > 0) || len(p.Starved) > 0 {
		t.Fatalf("%s: %d paused, %d admitted, %d starved", s.cfg.Policy, len(p.Paused), len(p.Admitted), len(p.Starved))
	}
	for _, q := range p.Paused {
		q.State = request.Paused
	}
	for _, a := range p.Admitted {
		a.Seq.State = request.Prefill
	}
	rows, seen := 0, oldest == nil
	for _, r := range p.Rows {
		q := r.Seq
		rows += r.Tokens
		seen = seen || q == oldest
		q.Computed += r.Tokens
		if q.Computed < q.Known && q.Computed%s.cfg.BlockTokens != 0 || q.Computed > len(q.Table)*s.cfg.BlockTokens {
			t.Fatalf("computed %d of %d with %d blocks", q.Computed, q.Known, len(q.Table))
		}
		if q.Computed < q.Known {
			continue
		}
		q.Known++
		q.State = request.Decode
		if budget[q]--; budget[q] == 0 {
			s.Remove(q)
			s.blocks.Release(q.Table)
		}
	}
	if !seen || rows > lim.MaxTokens || len(p.Rows) > lim.MaxBatch {
		t.Fatalf("oldest advanced %v, %d rows, %d requests", seen, rows, len(p.Rows))
	}
}

func TestPriorityQueueOrder(t *testing.T) {
	p := &pool{total: 100}
	s, err := New(Config{Policy: GuaranteedNoEvict, Chunking: FirstCome, Queue: Priority, BlockTokens: 4, MaxBatch: 8, MaxNumTokens: 64}, p, p)
	if err != nil {
		t.Fatal(err)
	}
	for i, prio := range []float64{0.5, 0.2, 0.9, 0.5} {
		s.Enqueue(&Seq{Number: uint64(i), Priority: prio, Known: 4, Complete: 2})
	}
	var got []uint64
	for _, a := range s.Schedule(Limits{MaxTokens: 64, MaxBatch: 8}).Admitted {
		got = append(got, a.Seq.Number)
	}
	if want := [4]uint64{2, 0, 3, 1}; len(got) != 4 || [4]uint64(got) != want {
		t.Errorf("admitted %v, want %v", got, want)
	}
}

func TestOftenPausedBecomesTheOldest(t *testing.T) {
	p := &pool{total: 10}
	s, err := New(Config{Policy: MaxUtilization, Chunking: FirstCome, Queue: FCFS, BlockTokens: 4, MaxBatch: 8, MaxNumTokens: 64}, p, p)
	if err != nil {
		t.Fatal(err)
	}
	young, old := &Seq{Number: 2, Pauses: maxPauses, Known: 4}, &Seq{Number: 1, Known: 4}
	s.Enqueue(young)
	s.Enqueue(old)
	s.Schedule(Limits{MaxTokens: 64, MaxBatch: 8})
	old.State, young.State = request.Decode, request.Decode
	s.pause(young)
	if s.Head() != old || !young.front {
		t.Fatal("setup")
	}
	s.Schedule(Limits{MaxTokens: 64, MaxBatch: 8})
	young.State = request.Decode
	if s.running.list[0] != young || s.victim(old) != old {
		t.Error("the request paused too often is not first, or can be a victim again")
	}
}

// TestNobodyPausesWhoWasPausedTooOften: not even who was, too, and is older.
func TestNobodyPausesWhoWasPausedTooOften(t *testing.T) {
	p := &pool{total: 10}
	s, err := New(Config{Policy: MaxUtilization, Chunking: FirstCome, Queue: FCFS, BlockTokens: 4, MaxBatch: 8, MaxNumTokens: 64}, p, p)
	if err != nil {
		t.Fatal(err)
	}
	running := make([]*Seq, 3)
	for i := range running {
		running[i] = &Seq{Number: uint64(i), State: request.Decode, front: i < 2, Table: []int32{int32(i)}}
		running[i].step = s.step + 1
		s.put(running[i], inRunning)
	}
	if v := s.victim(running[0]); v != running[2] {
		t.Errorf("%d yields, not the youngest", v.Number)
	}
	s.Remove(running[2])
	if v := s.victim(running[0]); v != running[0] {
		t.Errorf("%d yields, which was paused too often", v.Number)
	}
}

func TestAloneWithoutRoomStarves(t *testing.T) {
	p := &pool{total: 2}
	s, err := New(Config{Policy: MaxUtilization, Chunking: FirstCome, Queue: FCFS, BlockTokens: 4, MaxBatch: 8, MaxNumTokens: 64}, p, p)
	if err != nil {
		t.Fatal(err)
	}
	q := &Seq{Number: 1, Known: 4, State: request.Waiting}
	s.Enqueue(q)
	s.Schedule(Limits{MaxTokens: 64, MaxBatch: 8})
	q.State, q.Computed, q.Known = request.Decode, 4, 5
	p.used = p.total // the pool shrank
	if got := s.Schedule(Limits{MaxTokens: 64, MaxBatch: 8}); len(got.Starved) != 1 || len(got.Paused) != 0 {
		t.Errorf("%+v", got)
	}
}

// TestRunningSteps tells what a request gets while steps run that have rows of it.
// Prompts get rows by how many requests decode beside them: two blocks at least, and
// what they may have beside any.
func TestPrefillBesideDecode(t *testing.T) {
	for _, tc := range []struct {
		decoding, mixed, perDecode int
		whole                      bool // prompts may not be divided
		want                       int
	}{
		{0, 128, 4, false, 512},
		{1, 128, 4, false, 32},
		{8, 128, 4, false, 32},
		{12, 128, 4, false, 48},
		{32, 128, 4, false, 128},
		{100, 128, 4, false, 128},
		{100, 0, 4, false, 400},
		{1, 16, 4, false, 16},
		{1, 128, 4, true, 128},
		{1, 128, 0, false, 128},
		{1, 0, 0, false, 511},
	} {
		p := &pool{total: 1000}
		s, err := New(Config{
			Policy: GuaranteedNoEvict, Chunking: FirstCome, Queue: FCFS, BlockTokens: 16, MaxBatch: 200, MaxNumTokens: 512,
			PrefillMixed: tc.mixed, PrefillPerDecode: tc.perDecode, ChunkPrefill: !tc.whole,
		}, p, p)
		if err != nil {
			t.Fatal(err)
		}
		for i := range tc.decoding {
			q := &Seq{Number: uint64(i + 1), Known: 5, Computed: 4, State: request.Decode, Complete: 2}
			q.Table, _ = p.Take(nil, 1)
			s.put(q, inRunning)
		}
		long := &Seq{Number: 1000, Known: tc.want, State: request.Waiting, Complete: 100}
		if !tc.whole {
			long.Known = 1001
		}
		s.Enqueue(long)
		got := -tc.decoding
		for _, r := range s.Schedule(Limits{MaxTokens: 512, MaxBatch: 200}).Rows {
			got += r.Tokens
		}
		if want := min(tc.want, 512-tc.decoding) / 16 * 16; got != want {
			t.Errorf("%+v: %d rows of the prompt, want %d", tc, got, want)
		}
	}
}

func TestRunningSteps(t *testing.T) {
	for _, tc := range []struct {
		name     string
		q        Seq
		waits    bool // in the queue, else it runs with a block
		admitted int
		rows     int
	}{
		{"its token is being sampled", Seq{State: request.Prefill, Known: 5, Computed: 4, Flying: 1, Ahead: true}, false, 0, 1},
		{"its last token is", Seq{State: request.Decode, Known: 5, Computed: 4, Flying: 1, Ahead: true, Last: true}, false, 0, 0},
		{"its chunk runs", Seq{State: request.Prefill, Known: 8, Computed: 4, Flying: 1}, false, 0, 1},
		{"it was paused and runs still", Seq{State: request.Paused, Known: 5, Flying: 1, Ahead: true}, true, 0, 0},
		{"it was paused", Seq{State: request.Paused, Known: 5}, true, 1, 1},
	} {
		p := &pool{total: 8}
		s, err := New(Config{Policy: MaxUtilization, Chunking: FirstCome, Queue: FCFS, BlockTokens: 4, MaxBatch: 8, MaxNumTokens: 64}, p, p)
		if err != nil {
			t.Fatal(err)
		}
		q := tc.q
		q.Number, q.Complete = 1, 4
		if tc.waits {
			s.Enqueue(&q)
		} else {
			q.Table, _ = p.Take(nil, 1)
			s.put(&q, inRunning)
		}
		if plan := s.Schedule(Limits{MaxTokens: 64, MaxBatch: 8, Pending: true}); len(plan.Rows) != tc.rows || len(plan.Admitted) != tc.admitted {
			t.Errorf("%s: %d rows, %d admitted", tc.name, len(plan.Rows), len(plan.Admitted))
		}
	}
}

// TestWaitsOnceForBlocksThatComeBack lets the older of two requests wait for the
// step that runs instead of pausing the other, but not twice.
func TestWaitsOnceForBlocksThatComeBack(t *testing.T) {
	p := &pool{total: 2}
	s, err := New(Config{Policy: MaxUtilization, Chunking: FirstCome, Queue: FCFS, BlockTokens: 4, MaxBatch: 8, MaxNumTokens: 64}, p, p)
	if err != nil {
		t.Fatal(err)
	}
	old := &Seq{Number: 1, State: request.Decode, Known: 4, Computed: 3, Complete: 2}
	young := &Seq{Number: 2, State: request.Decode, Known: 4, Computed: 3, Complete: 2}
	for _, q := range []*Seq{old, young} {
		q.Table, _ = p.Take(nil, 1)
		s.put(q, inRunning)
	}
	for i, want := range []struct{ rows, paused int }{{2, 0}, {0, 0}, {1, 1}} {
		lim := Limits{MaxTokens: 64, MaxBatch: 8, Pending: true, Soon: i > 0}
		plan := s.Schedule(lim)
		if len(plan.Rows) != want.rows || len(plan.Paused) != want.paused {
			t.Fatalf("plan %d: %d rows, %d paused; want %+v", i, len(plan.Rows), len(plan.Paused), want)
		}
		if i == 0 {
			old.Computed, old.Known, young.Computed, young.Known = 4, 5, 4, 5
		}
	}
}
