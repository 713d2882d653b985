package comm

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"
)

// conforms runs f against every implementation.
func conforms(t *testing.T, f func(t *testing.T, w *world)) {
	for _, l := range layouts {
		t.Run(l.String(), func(t *testing.T) { f(t, newWorld(t, l, Config{Key: []byte("k")})) })
	}
}

func TestExchangeGivesEveryRankTheSameTable(t *testing.T) {
	conforms(t, func(t *testing.T, w *world) {
		const first = 41
		w.all(t, func(c Comm) error {
			for iter := uint64(first); iter < first+50; iter++ {
				table, err := c.Exchange(t.Context(), record(c, iter))
				if err != nil {
					return err
				}
				for i, o := range w.ranks {
					if table[i] != record(o, iter) {
						return fmt.Errorf("iteration %d: rank %d is %+v", iter, i, table[i])
					}
				}
				table[0].RouteDigest = 99 // the table is the rank's own
			}
			return nil
		})
	})
}

// payload of a rank in an iteration; sometimes nobody has one.
func payload(rank int, iter uint64) []byte {
	if iter%3 == 0 || (int(iter)+rank)%2 == 0 {
		return nil
	}
	return bytes.Repeat([]byte{byte(rank), byte(iter)}, 1+int(iter)*100)
}

func TestGatherGivesEveryPayload(t *testing.T) {
	conforms(t, func(t *testing.T, w *world) {
		w.all(t, func(c Comm) error {
			buf := []byte(nil)
			for iter := range uint64(30) {
				rec := record(c, iter)
				buf = append(buf[:0], payload(c.ID(), iter)...)
				rec.PayloadBytes = uint32(len(buf))
				if _, err := c.Exchange(t.Context(), rec); err != nil {
					return err
				}
				parts, err := c.Gather(t.Context(), buf)
				if err != nil {
					return err
				}
				clear(buf) // the payload is the caller's again
				if iter%3 == 0 && parts != nil {
					return fmt.Errorf("iteration %d: parts without payloads", iter)
				}
				for r, p := range parts {
					if !bytes.Equal(p, payload(r, iter)) {
						return fmt.Errorf("iteration %d: payload of rank %d differs", iter, r)
					}
				}
			}
			return nil
		})
	})
}

// rowCounts of a round; some are zero, in one round all are.
func rowCounts(size, round int) []int {
	rows := make([]int, size)
	for i := range rows {
		rows[i] = (i*5 + round*3) % 4 * round
	}
	return rows
}

func sum(x []int) (n int) {
	for _, v := range x {
		n += v
	}
	return n
}

// naiveTree adds by halves of the range of ranks, element by element.
func naiveTree(all [][]float32, lo, hi, i int) float32 {
	if hi-lo == 1 {
		return all[lo][i]
	}
	mid := (lo + hi) / 2
	return naiveTree(all, lo, mid, i) + naiveTree(all, mid, hi, i)
}

func treeSums(all [][]float32) []float32 {
	out := make([]float32, len(all[0]))
	for i := range out {
		out[i] = naiveTree(all, 0, len(all), i)
	}
	return out
}

func TestRowsAreTheSameBitsInEveryLayout(t *testing.T) {
	conforms(t, func(t *testing.T, w *world) {
		size := len(w.ranks)
		for round := range 5 {
			for _, width := range []int{1, 7, 576} {
				rows := rowCounts(size, round)
				total := sum(rows) * width
				all := make([][]float32, size)
				for r := range all {
					all[r] = values(uint64(r+10*round), total)
				}
				want := treeSums(all)
				w.all(t, func(c Comm) error { return checkRows(t.Context(), c, all, want, rows, width) })
			}
		}
	})
}

func checkRows(ctx context.Context, c Comm, all [][]float32, want []float32, rows []int, width int) error {
	lo := sum(rows[:c.ID()]) * width
	hi := lo + rows[c.ID()]*width
	x := slices.Clone(all[c.ID()])
	if err := c.AllReduce(ctx, x); err != nil {
		return err
	}
	if !slices.Equal(x, want) {
		return fmt.Errorf("all-reduce of %d differs", len(x))
	}
	for _, inPlace := range []bool{false, true} {
		src, dst := slices.Clone(all[c.ID()]), make([]float32, hi-lo)
		if inPlace {
			dst = src[lo:hi]
		}
		if err := c.ReduceScatter(ctx, dst, src, rows, width); err != nil {
			return err
		}
		if !slices.Equal(dst, want[lo:hi]) {
			return fmt.Errorf("reduce-scatter %v width %d in place %v differs", rows, width, inPlace)
		}
		full, own := make([]float32, len(want)), dst
		if inPlace {
			own = full[lo:hi]
			copy(own, dst)
		}
		if err := c.AllGather(ctx, full, own, rows, width); err != nil {
			return err
		}
		if !slices.Equal(full, want) {
			return fmt.Errorf("all-gather %v width %d in place %v differs", rows, width, inPlace)
		}
	}
	return nil
}

func TestBarrierHoldsBack(t *testing.T) {
	conforms(t, func(t *testing.T, w *world) {
		came := make(chan int, len(w.ranks))
		w.all(t, func(c Comm) error {
			for range 20 {
				came <- c.ID()
				if err := c.Barrier(t.Context()); err != nil {
					return err
				}
				if c.ID() == 0 {
					if len(came) != len(w.ranks) {
						return fmt.Errorf("%d ranks came", len(came))
					}
					for range w.ranks {
						<-came
					}
				}
				if err := c.Barrier(t.Context()); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

func TestAnyRankWakesRankZero(t *testing.T) {
	conforms(t, func(t *testing.T, w *world) {
		for _, c := range w.ranks {
			c.Wake()
			select {
			case <-w.ranks[0].Woken():
			case <-t.Context().Done():
				t.Fatal("no wake")
			}
		}
		w.ranks[0].Wake()
		w.ranks[0].Wake()
		<-w.ranks[0].Woken() // kept until it is awaited, as one
		select {
		case <-w.ranks[0].Woken():
			t.Error("two wakes")
		default:
		}
	})
}

func TestLastExchangeReachesAllBeforeTheEnd(t *testing.T) {
	for _, l := range []layout{{1}, {4}, {8}, {2, 2}, {1, 4}, {1, 1, 1}} {
		t.Run(l.String(), func(t *testing.T) {
			for range 5 {
				w := newWorld(t, l, Config{})
				w.all(t, func(c Comm) error {
					rec := record(c, 1)
					rec.Flags = FlagShutdown
					for iter := uint64(1); iter < 4; iter++ {
						rec.Iter = iter
						if _, err := c.Exchange(t.Context(), rec); err != nil {
							return err
						}
					}
					return c.Close()
				})
				w.close()
			}
		})
	}
}

func TestMistakesOfOneRankLeaveTheGroupAlone(t *testing.T) {
	w := newWorld(t, layout{2}, Config{})
	c, x := w.ranks[0], make([]float32, 6)
	for name, err := range map[string]error{
		"short dst":    c.AllGather(t.Context(), x[:5], x[:2], []int{1, 2}, 2),
		"long src":     c.AllGather(t.Context(), x, x[:3], []int{1, 2}, 2),
		"row counts":   c.AllGather(t.Context(), x, x[:2], []int{3}, 2),
		"negative":     c.ReduceScatter(t.Context(), x, x, []int{-1, 2}, 2),
		"scatter dst":  c.ReduceScatter(t.Context(), x[:1], x, []int{1, 2}, 2),
		"all-to-all":   c.AllToAll(t.Context(), x, x, []int{0, 1, 1, 0}, 2),
		"minus length": c.ReduceScatter(t.Context(), x, x, []int{1, 2}, -2),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := w.groups[0].Err(); err != nil {
		t.Errorf("group: %v", err)
	}
}

// TestAllToAll brings rows that say where they come from and go to.
func TestAllToAll(t *testing.T) {
	conforms(t, func(t *testing.T, w *world) {
		const width = 5
		size := len(w.ranks)
		value := func(from, to, i int) float32 { return float32(from*10000 + to*1000 + i) }
		for round := range 4 {
			rows := make([]int, size*size)
			for i := range rows {
				rows[i] = (i*7 + round*5) % 4 * round
			}
			w.all(t, func(c Comm) error {
				var src, want []float32
				for peer := range size {
					for i := range rows[c.ID()*size+peer] * width {
						src = append(src, value(c.ID(), peer, i))
					}
					for i := range rows[peer*size+c.ID()] * width {
						want = append(want, value(peer, c.ID(), i))
					}
				}
				dst := make([]float32, len(want))
				if err := c.AllToAll(t.Context(), dst, src, rows, width); err != nil {
					return err
				}
				if !slices.Equal(dst, want) {
					return fmt.Errorf("round %d: %v, want %v", round, dst, want)
				}
				return nil
			})
		}
	})
}
