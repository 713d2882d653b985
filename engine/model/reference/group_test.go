package reference

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"tandem/engine/tensor"
)

// meeting is what the ranks of a test share: each shows its memory and waits
// until all have, then until all have read it.
type meeting struct {
	mu      sync.Mutex
	changed sync.Cond
	src     [][]float32
	arrived int
}

func (m *meeting) wait(size int) {
	m.arrived++
	m.changed.Broadcast()
	for turn := (m.arrived + size - 1) / size; m.arrived < turn*size; {
		m.changed.Wait()
	}
}

type testRank struct {
	*meeting
	id, size int
}

func testGroup(size int) (ranks []testRank) {
	m := &meeting{src: make([][]float32, size)}
	m.changed.L = &m.mu
	for id := range size {
		ranks = append(ranks, testRank{m, id, size})
	}
	return ranks
}

func (r testRank) ID() int   { return r.id }
func (r testRank) Size() int { return r.size }

func (r testRank) share(src []float32, read func(all [][]float32)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.src[r.id] = src
	r.wait(r.size)
	read(r.src)
	r.wait(r.size)
	return nil
}

func (r testRank) AllGather(_ context.Context, dst, src []float32, _ []int, _ int) error {
	return r.share(src, func(all [][]float32) { copy(dst, slices.Concat(all...)) })
}

func (r testRank) ReduceScatter(_ context.Context, dst, src []float32, rows []int, width int) error {
	return r.share(src, func(all [][]float32) {
		first := sum(rows[:r.id]) * width
		for i := range dst {
			for _, x := range all {
				dst[i] += x[first+i]
			}
		}
	})
}

// runRanks records a pass on each rank, runs it on as many rows as rows tells,
// and returns what result finds in a buffer.
func runRanks(t *testing.T, rows []int, record func(b *Backend, rank int) (result tensor.Buffer)) [][]float32 {
	t.Helper()
	out := make([][]float32, len(rows))
	var wg sync.WaitGroup
	for r, rank := range testGroup(len(rows)) {
		wg.Go(func() {
			b, err := NewRank(kv(), rank)
			if err != nil {
				t.Error(err)
				return
			}
			b.embed = 9
			result := record(b, r)
			var batch tensor.Batch
			batch.Reset()
			batch.RankRows = rows
			if rows[r] > 0 {
				batch.Add(make([]int32, rows[r]), 0, []int32{0, 1, 2}, false)
			}
			if _, err := b.Run(&batch); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
			out[r] = b.buffers[result].data
		})
	}
	wg.Wait()
	return out
}

// number fills a buffer or view with 10*(rank+1) plus the position in it.
func number(b *Backend, h tensor.Buffer, rank int) {
	b.add(func(s *step) {
		for i := range b.rows(s, h) {
			row := b.row(h, i)
			for j := range row {
				row[j] = float32(10*(rank+1) + i*len(row) + j)
			}
		}
	})
}

func TestGroupOps(t *testing.T) {
	for _, tc := range []struct {
		name   string
		rows   []int
		record func(b *Backend, rank int) tensor.Buffer
		want   [][]float32
	}{
		{"columns", []int{2, 2}, func(b *Backend, rank int) tensor.Buffer {
			x, cuts := b.Buffer(3), []int{0, 1, 3}
			number(b, b.Columns(x, cuts[rank], cuts[rank+1]-cuts[rank]), rank)
			b.GatherColumns(x, cuts)
			return x
		}, [][]float32{{10, 20, 21, 11, 22, 23}, {10, 20, 21, 11, 22, 23}}},
		{"columns of all rows", []int{0, 1}, func(b *Backend, rank int) tensor.Buffer {
			x, cuts := b.Shared(2), []int{0, 1, 2}
			number(b, b.Columns(x, rank, 1), rank)
			b.GatherColumns(x, cuts)
			return x
		}, [][]float32{{10, 20}, {10, 20}}},
		{"rows", []int{1, 0, 2}, func(b *Backend, rank int) tensor.Buffer {
			x, all := b.Buffer(2), b.Shared(2)
			number(b, x, rank)
			b.GatherRows(all, x)
			return all
		}, [][]float32{{10, 11, 30, 31, 32, 33}, {10, 11, 30, 31, 32, 33}, {10, 11, 30, 31, 32, 33}}},
		{"own rows", []int{1, 0, 2}, func(b *Backend, rank int) tensor.Buffer {
			x, all := b.Buffer(1), b.Shared(1)
			number(b, all, rank)
			b.OwnRows(x, all)
			return x
		}, [][]float32{{10}, {}, {31, 32}}},
		{"shares of all rows", []int{1, 2}, func(b *Backend, rank int) tensor.Buffer {
			x, share := b.Buffer(1), b.Shared(1)
			number(b, x, rank)
			number(b, share, rank)
			b.AddShares(x, share)
			return x
		}, [][]float32{{10 + 30}, {20 + 32, 21 + 34}}},
		{"shares of equal rows", []int{2, 2, 2}, func(b *Backend, rank int) tensor.Buffer {
			x, share := b.Buffer(2), b.Buffer(2)
			number(b, x, 0)
			number(b, share, rank)
			b.AddShares(x, share)
			return x
		}, [][]float32{{70, 74, 78, 82}, {70, 74, 78, 82}, {70, 74, 78, 82}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := runRanks(t, tc.rows, tc.record)
			for r := range got {
				if !slices.Equal(got[r], tc.want[r]) {
					t.Errorf("rank %d has %v, want %v", r, got[r], tc.want[r])
				}
			}
		})
	}
}

func TestGroupErrors(t *testing.T) {
	for want, record := range map[string]func(b *Backend){
		"Columns: 1 to 4":                       func(b *Backend) { b.Columns(b.Buffer(3), 1, 3) },
		"GatherColumns: cuts [0 2]":             func(b *Backend) { b.GatherColumns(b.Buffer(2), []int{0, 2}) },
		"GatherColumns: cuts [0 1 2]":           func(b *Backend) { b.GatherColumns(b.Buffer(3), []int{0, 1, 2}) },
		"GatherRows: needs a shared buffer":     func(b *Backend) { b.GatherRows(b.Buffer(2), b.Buffer(2)) },
		"OwnRows: needs a shared buffer":        func(b *Backend) { b.OwnRows(b.Shared(2), b.Shared(2)) },
		"AddShares: share of width 3, want 2":   func(b *Backend) { b.AddShares(b.Buffer(2), b.Buffer(3)) },
		"GatedMLP: rows of one rank and of all": func(b *Backend) { b.checkRows("GatedMLP", b.Shared(2), b.Buffer(2)) },
		"the batch tells []":                    func(*Backend) {},
	} {
		b, err := NewRank(kv(), testGroup(2)[0])
		if err != nil {
			t.Fatal(err)
		}
		record(b)
		if _, err := b.Run(&tensor.Batch{RowStart: []int32{0}, PageStart: []int32{0}}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
	b, _ := New(kv())
	b.GatherRows(b.Shared(1), b.Buffer(1))
	if _, err := b.Run(&tensor.Batch{}); err == nil || !strings.Contains(err.Error(), "GatherRows") {
		t.Errorf("without a group: %v", err)
	}
	b, _ = NewRank(kv(), testGroup(2)[0])
	b.GatherColumns(b.Buffer(2), []int{0, 1, 2})
	batch := tensor.Batch{RowStart: []int32{0}, PageStart: []int32{0}, RankRows: []int{0, 1}}
	if _, err := b.Run(&batch); err == nil || !strings.Contains(err.Error(), "ranks have [0 1] rows") {
		t.Errorf("unequal rows: %v", err)
	}
}
