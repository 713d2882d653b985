package runner

import (
	"runtime"
	"sync"
	"sync/atomic"

	"tandem/engine/executor"
	"tandem/engine/request"
)

// What a grammar allows next depends on the tokens before only. So it is found out
// while the device computes the logits, not after that.

// guided is a choice that a step samples under a grammar.
type guided struct {
	*sampleState
	output []int32 // before the step
}

// prepare begins to find what the grammars of a step's rows allow. Their tokens
// before it must be known. done waits for the end; call it before anything samples,
// and also if the step fails.
func (s *sampling) prepare(rows []executor.Row) (done func()) {
	var list []guided
	add := func(r *request.Request) {
		if r.Guide != nil {
			st := s.get(r)
			list = append(list, guided{st, st.output})
		}
	}
	for i := range rows {
		if row := &rows[i]; row.Sample {
			add(row.Request)
			for _, q := range row.Forks {
				add(q)
			}
		}
	}
	if len(list) == 0 {
		return func() {}
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(len(list), runtime.GOMAXPROCS(0)) {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(len(list)); i = next.Add(1) {
				list[i-1].state.Prepare(list[i-1].output)
			}
		})
	}
	return wg.Wait
}
