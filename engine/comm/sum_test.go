package comm

import (
	"fmt"
	"slices"
	"testing"
)

// TestTreeSum compares sums of every small size of a group, over several chunks.
func TestTreeSum(t *testing.T) {
	for size := range 17 {
		size++
		const n = 2*chunk + 37
		h := &hub{}
		for r := range size {
			h.src = append(h.src, values(uint64(r), n))
		}
		r := &Rank{hub: h, scratch: make([]float32, scratchLen(size))}
		got := make([]float32, n-5)
		r.sumInto(got, 5, n)
		for i := range got {
			if want := naiveTree(h.src, 0, size, i+5); got[i] != want {
				t.Fatalf("%d ranks: element %d is %v, want %v", size, i, got[i], want)
			}
		}
	}
}

// TestAlignedSharesAddUp is what the tree is for: ranks that hold halves or
// quarters of eight parts, and add them up by the same rule, get the bits of one
// that holds them all.
func TestAlignedSharesAddUp(t *testing.T) {
	const parts, n = 8, 50
	all := make([][]float32, parts)
	for p := range all {
		all[p] = values(uint64(p), n)
	}
	want := treeSums(all)
	for _, l := range []layout{{2}, {4}, {8}, {1, 1}, {1, 3}} {
		t.Run(l.String(), func(t *testing.T) {
			w := newWorld(t, l, Config{})
			w.all(t, func(c Comm) error {
				x, held := make([]float32, n), parts/c.Size()
				for i := range x {
					x[i] = naiveTree(all, c.ID()*held, (c.ID()+1)*held, i)
				}
				if err := c.AllReduce(t.Context(), x); err != nil {
					return err
				}
				if !slices.Equal(x, want) {
					return fmt.Errorf("other bits")
				}
				return nil
			})
		})
	}
}
