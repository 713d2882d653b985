package cpu

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"tandem/engine/tensor"
	kernels "tandem/kernels/cpu"
)

// Ranks of one process hold what they load alike once.
func TestStoreHoldsEqualWeightsOnce(t *testing.T) {
	w := newWeights(adpShape, 6)
	store, cfg := NewStore(), groupConfig("", 1, tensor.BF16)
	apart := 0
	var names []string
	alone, _ := ranksOf(t, w, 2, cfg, false)
	for _, b := range alone {
		apart += b.MemoryReport().WeightBytes
		if b.MemoryReport().SharedBytes != 0 {
			t.Error("a backend without a store shares weights")
		}
	}
	cfg.Store, cfg.Loaded = store, func(name string, _ int) { names = append(names, name) }
	t.Run("backends", func(t *testing.T) {
		ranks, _ := ranksOf(t, w, 2, cfg, false)
		first, second := ranks[0].MemoryReport(), ranks[1].MemoryReport()
		if first.SharedBytes != 0 || second.SharedBytes == 0 || second.WeightBytes >= first.WeightBytes {
			t.Errorf("%+v, %+v", first, second)
		}
		if sum := first.WeightBytes + second.WeightBytes + second.SharedBytes; sum != apart {
			t.Errorf("%d bytes with the shared ones twice, without a store %d", sum, apart)
		}
		if b := store.Bytes(); b < first.WeightBytes+second.WeightBytes || b >= apart {
			t.Errorf("the store has %d bytes, the backends %d and %d", b, first.WeightBytes, second.WeightBytes)
		}
		slices.Sort(names)
		if n := len(names); n == 0 || len(slices.Compact(names)) != n {
			t.Errorf("%d tensors loaded, some twice: %q", n, names)
		}
		if err := store.Close(); !errors.Is(err, ErrInUse) {
			t.Errorf("close in use: %v", err)
		}
		var a, b tensor.Batch
		for _, batch := range []*tensor.Batch{&a, &b} {
			batch.Reset()
			batch.Add([]int32{1, 2, 3}, 0, []int32{1}, true)
		}
		one, err := plain(t, w, groupConfig("", 1, tensor.BF16)).Run(&a)
		if err != nil {
			t.Fatal(err)
		}
		for _, got := range runAll(t, ranks, []tensor.Batch{a, b}) {
			if !slices.Equal(got, one) {
				t.Error("other logits with shared weights")
			}
		}
	})
	if err := errors.Join(store.Close(), store.Close()); err != nil {
		t.Error(err)
	}
	if _, err := New(Config{MaxRows: 8, KV: tinyConfig().KV, Store: store}); err == nil {
		t.Error("a closed store was taken")
	}
}

// Tensors that differ in any way stay apart.
func TestStoreTellsWeightsApart(t *testing.T) {
	cfg, values := tinyConfig(), make([]float32, 32*32)
	cfg.Store = NewStore()
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	load := func(h tensor.Host, parts ...tensor.Host) *Backend {
		if _, err := b.Matrix(append([]tensor.Host{h}, parts...)...); err != nil {
			t.Fatal(err)
		}
		return b
	}
	first := host("w", tensor.F32, values, 32, 32)
	load(first)
	values[32*16] = 1
	for name, h := range map[string]tensor.Host{
		"name": host("v", tensor.F32, make([]float32, 32*32), 32, 32), "shape": first.RowRange(0, 16), "type": host("w", tensor.Q8_0, values, 32, 32),
		"bytes": host("w", tensor.F32, values, 32, 32), "other shape": {Name: "w", DType: tensor.F32, Shape: []int{16, 64}, Data: first.Data},
	} {
		if shared := b.shared; load(h).shared != shared {
			t.Errorf("a tensor with another %s is shared", name)
		}
	}
	if shared := b.shared; load(first, first).shared != shared {
		t.Error("two tensors are shared with one")
	}
	if _, err := b.GateUp(first, first); err != nil || b.shared != 0 {
		t.Errorf("gate and up are shared with a stacked matrix: %v", err)
	}
	if load(first); b.shared == 0 {
		t.Error("an equal tensor is not shared")
	}
	if _, err := b.Matrix(tensor.Host{Name: "q", DType: tensor.F32, Shape: []int{1, 5}, Data: make([]byte, 20)}, first); err == nil {
		t.Error("unequal columns were taken")
	}
}

// A weight that fails to load can be tried again.
func TestStoreForgetsFailures(t *testing.T) {
	s, fail := NewStore(), true
	for range 2 {
		w, had, err := s.get(kindVector, []tensor.Host{{Name: "v"}}, func(*kernels.Weights) (weight, error) {
			if fail {
				return weight{}, errFake
			}
			return weight{bytes: 4}, nil
		})
		if had || fail != errors.Is(err, errFake) || !fail && w.bytes != 4 {
			t.Errorf("%+v, %t, %v", w, had, err)
		}
		fail = false
	}
}

func TestStoreLoadsFromManyAtOnce(t *testing.T) {
	cfg := tinyConfig()
	cfg.Store = NewStore()
	loaded := make(chan string, 99)
	cfg.Loaded = func(name string, _ int) { loaded <- name }
	bad := tensor.Host{Name: "b", DType: tensor.Q8_0, Shape: []int{32}, Data: make([]byte, 34)}
	var wg sync.WaitGroup
	for range 4 {
		b, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			defer b.Close()
			for range 3 {
				if _, err := b.Vector(bad); err == nil {
					t.Error("a quantised vector was taken")
				}
				if _, err := b.Matrix(host("w", tensor.F32, make([]float32, 32*32), 32, 32)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if err := cfg.Store.Close(); err != nil || len(loaded) != 1 {
		t.Errorf("loaded %d times, %v", len(loaded), err)
	}
}
