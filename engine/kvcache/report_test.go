package kvcache

import (
	"testing"

	"tandem/engine/blockhash"
)

func TestBucketsFollowPriorities(t *testing.T) {
	m, err := New(Config{Blocks: 6, BlockTokens: 4})
	if err != nil {
		t.Fatal(err)
	}
	table, _ := m.Take(nil, 4)
	h := blockhash.Root("m", "", "")
	for i, id := range table {
		parent := h
		h = blockhash.Next(parent, []int32{int32(i), 1, 2, 3})
		m.Commit(id, parent, h, []int32{int32(i), 1, 2, 3})
	}
	var by [Priorities]int
	if m.Buckets(&by); by != [Priorities]int{} {
		t.Errorf("blocks in use are in buckets: %v", by)
	}
	m.SetPriority(table[1], 80)
	m.Release(table)
	m.Buckets(&by)
	if by[DefaultPriority] != 2 || by[80] != 2 { // a block lifts its ancestors
		t.Errorf("%d with the default, %d with 80", by[DefaultPriority], by[80])
	}
	m.BeginCopy(table[3])
	if m.Buckets(&by); by[DefaultPriority] != 1 {
		t.Errorf("%d left", by[DefaultPriority])
	}
	m.EndCopy(table[3])
	if _, ok := m.Take(nil, 6); !ok {
		t.Error("not all are free")
	}
	if m.Buckets(&by); by != [Priorities]int{} {
		t.Errorf("%v", by)
	}
}
