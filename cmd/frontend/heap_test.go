package main

import "testing"

func TestHeapPercent(t *testing.T) {
	for live, want := range map[uint64]int{
		0: 100, 1: 3199, 1 << 20: 3100, 4 << 20: 700, 8 << 20: 300, 16 << 20: 100, 17 << 20: 100, 1 << 40: 100,
	} {
		if got := heapPercent(live); got != want {
			t.Errorf("%d bytes alive: %d, want %d", live, got, want)
		}
	}
	if liveHeap() > 1<<40 {
		t.Error("the heap is not what it was taken for")
	}
}
