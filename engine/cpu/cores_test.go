package cpu

import (
	"runtime"
	"slices"
	"strings"
	"testing"

	"tandem/engine/tensor"
	kernels "tandem/kernels/cpu"
)

func TestSpread(t *testing.T) {
	// Two sockets of two cores with two hyperthreads each, numbered as Linux often does.
	names := map[int][2]string{
		0: {"0,4", "0"}, 4: {"0,4", "0"}, 1: {"1,5", "1"}, 5: {"1,5", "1"}, 2: {"2,6", "0"}, 6: {"2,6", "0"}, 3: {"3,7", "1"}, 7: {"3,7", "1"},
	}
	read := func(cpu int, name string) string {
		if name == "thread_siblings_list" {
			return names[cpu][0]
		}
		return names[cpu][1]
	}
	for _, c := range []struct {
		allowed []int
		skip, n int
		want    []int
	}{
		{[]int{0, 1, 2, 3, 4, 5, 6, 7}, 0, 4, []int{0, 2, 1, 3}},
		{[]int{0, 1, 2, 3, 4, 5, 6, 7}, 2, 3, []int{1, 3, 4}},
		{[]int{5, 6, 7}, 0, 3, []int{6, 5, 7}},
		{[]int{0, 4}, 1, 1, []int{4}},
		{[]int{8, 9}, 0, 2, []int{8, 9}}, // nothing is known of them
		{[]int{0, 4}, 1, 2, nil},
		{nil, 0, 1, nil},
	} {
		got, err := spread(cores(read, c.allowed), c.skip, c.n)
		if !slices.Equal(got, c.want) || (err == nil) != (c.want != nil) || err != nil && !strings.Contains(err.Error(), "pin_threads") {
			t.Errorf("%d threads behind %d on %v: %v, %v", c.n, c.skip, c.allowed, got, err)
		}
	}
}

// The caller's thread is bound for a run and free again behind it.
func TestBoundThreads(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := allowed()
	if len(before) == 0 {
		t.Skip("this system does not bind threads")
	}
	pool, err := kernels.NewPool(1, before[len(before)-1:])
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if r := pool.ReadRate(make([]byte, 1<<20)); r <= 0 {
		t.Errorf("reads %g bytes a second", r)
	}
	if after := allowed(); !slices.Equal(before, after) {
		t.Errorf("processors %v became %v", before, after)
	}
}

func TestProcessorsOfABackend(t *testing.T) {
	cfg := Config{
		Threads: 1, CPUs: []int{1 << 20}, MaxRows: 16,
		KV: tensor.KVShape{Layers: 1, KVHeads: 1, HeadDim: 16, BlockTokens: 16, Blocks: 2, DType: tensor.BF16},
	}
	if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "processors [1048576]") {
		t.Errorf("an impossible processor: %v", err)
	}
	cfg.CPUs = []int{0, 1}
	if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "2 processors for 1 threads") {
		t.Error(err)
	}
}
