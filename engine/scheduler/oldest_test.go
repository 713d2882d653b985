package scheduler

import (
	"slices"
	"testing"

	"tandem/engine/request"
)

// TestTheOldestGoesOnBesideThoseThatWerePulled proves that a request whose pull
// failed, so that it prefills although it has been admitted, gets its place in the
// batch and its block before younger ones that decode.
func TestTheOldestGoesOnBesideThoseThatWerePulled(t *testing.T) {
	for _, tc := range []struct {
		name         string
		batch, total int
		rows, paused []uint64 // numbers
	}{
		{"there is room", 4, 16, []uint64{1, 2, 3, 0}, nil},
		{"the batch is full", 2, 16, []uint64{1, 0}, nil},
		{"one at a time", 1, 16, []uint64{0}, nil},
		{"one block is left", 4, 13, []uint64{1, 2, 0}, []uint64{3}},
	} {
		p := &pool{total: tc.total}
		s, err := New(Config{
			Policy: MaxUtilization, Chunking: FirstCome, Queue: FCFS, BlockTokens: 4, MaxBatch: tc.batch, MaxNumTokens: 100, ChunkPrefill: true, MaxRecv: 8,
		}, p, p)
		if err != nil {
			t.Fatal(err)
		}
		for i := range uint64(4) {
			// 12 tokens were offered: three blocks, and the first token needs another.
			q := &Seq{Number: i, Known: 13, Computed: 12, Offered: 12, Complete: 6, State: request.GenReady, where: inReceiving}
			q.Table, _ = p.Take(q.Table, 3)
			if i == 0 {
				q.State, q.Computed = request.Prefill, 4
			}
			if i == 1 || i == 2 { // these have it already
				q.Known, q.Computed = 12, 11
			}
			s.recv.insert(q)
			s.Received(q)
		}
		plan := s.Schedule(Limits{MaxTokens: 100, MaxBatch: tc.batch})
		var rows, paused []uint64
		for _, r := range plan.Rows {
			rows = append(rows, r.Seq.Number)
		}
		for _, q := range plan.Paused {
			paused = append(paused, q.Number)
		}
		if !slices.Equal(rows, tc.rows) || !slices.Equal(paused, tc.paused) {
			t.Errorf("%s: rows of %v, want %v; paused %v, want %v", tc.name, rows, tc.rows, paused, tc.paused)
		}
	}
}
