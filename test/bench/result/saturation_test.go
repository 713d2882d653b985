package result

import "testing"

// queue is a server that takes took ms for each request, one at a time, and gets one each gap ms.
func queue(n int, gap, took int64) (out []*Record) {
	free := int64(0)
	for i := range n {
		at := int64(i) * gap
		free = max(free, at) + took
		out = append(out, rec(at, 0, free-at, 1))
	}
	return out
}

func TestOversaturated(t *testing.T) {
	for name, c := range map[string]struct {
		records []*Record
		want    bool
	}{
		"too much":     {queue(200, 10, 13), true},
		"far too much": {queue(3000, 1, 50), true},
		"enough":       {queue(200, 10, 9), false},
		"few":          {queue(10, 1, 50), false},
		"none":         {nil, false},
	} {
		if got := Oversaturated(c.records); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
