package disagg

import (
	"context"
	"encoding/json"
	"slices"
	"time"
)

// PerfRing is how many requests wait to be written where perf_metrics_max_requests names no number, here and at workers.
const PerfRing = 8192

// perfPause is how often finished requests are written to the file.
const perfPause = 2 * time.Second

// startPerfFile writes the perf records of finished requests as JSON lines, again and again until stopPerfFile.
func (s *Server) startPerfFile(pause time.Duration) {
	if s.perfFile == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	s.stopPerfFile = func() { cancel(); <-done }
	go func() {
		defer close(done)
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				s.writePerf(ctx)
			case <-ctx.Done():
				// The second round gives up what no worker told in the first.
				last, end := context.WithTimeout(context.WithoutCancel(ctx), perfPause)
				s.writePerf(last)
				s.writePerf(last)
				end()
				return
			}
		}
	}()
}

func (s *Server) writePerf(ctx context.Context) {
	list := s.collect(ctx, func(string) bool { return true })
	for i := range list {
		line, err := json.Marshal(&list[i])
		if err == nil {
			_, err = s.perfFile.Write(line)
		}
		if err != nil && s.perfFailed.CompareAndSwap(false, true) {
			s.log.Error("perf_metrics_output_dir: records cannot be written", "error", err)
		}
	}
	s.perf.wrote(list, s.cfg.PerfRecords)
}

// wrote keeps up to limit of the newest written records for GET /perf_metrics.
func (p *perf) wrote(list []perfRecord, limit int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.written = append(p.written, list...)
	p.written = p.written[max(0, len(p.written)-limit):]
}

// takeWritten returns those of some tenants, once.
func (p *perf) takeWritten(of func(tenant string) bool) []perfRecord {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := []perfRecord{}
	p.written = slices.DeleteFunc(p.written, func(rec perfRecord) bool {
		if of(rec.tenant) {
			out = append(out, rec)
		}
		return of(rec.tenant)
	})
	return out
}
