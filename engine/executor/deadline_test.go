package executor

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestDeadlinesComeInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h deadlines
		all := make([]*sequence, 12)
		want := make([]time.Duration, len(all))
		for i := range all {
			all[i] = &sequence{heapAt: -1}
			all[i].Number = uint64(i)
			want[i] = never
		}
		for range rapid.IntRange(1, 60).Draw(t, "changes") {
			i := rapid.IntRange(0, len(all)-1).Draw(t, "i")
			want[i] = never
			if rapid.IntRange(0, 3).Draw(t, "remove") > 0 {
				want[i] = time.Duration(rapid.IntRange(0, 20).Draw(t, "due"))
			}
			h.set(all[i], want[i])
		}
		for {
			first := -1
			for i, d := range want {
				if d != never && (first < 0 || d < want[first]) {
					first = i
				}
			}
			if first < 0 {
				break
			}
			if h[0] != all[first] {
				t.Fatalf("request %d is first, want %d", h[0].Number, first)
			}
			h.remove(h[0])
			want[first] = never
		}
		if len(h) != 0 {
			t.Fatalf("%d deadlines left", len(h))
		}
	})
}
