package trace

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestRequestLogSamples(t *testing.T) {
	var b strings.Builder
	log := slog.New(slog.NewTextHandler(&b, nil)) // info
	count := func(r RequestLog, failed bool) (n int) {
		for i := range 4000 {
			if r.Wants(log, fmt.Sprintf("req-%d", i), failed) {
				n++
			}
		}
		return n
	}
	for _, tc := range []struct {
		name     string
		r        RequestLog
		failed   bool
		min, max int
	}{
		{"off", RequestLog{Sample: 1}, true, 0, 0},
		{"below the level of the log", RequestLog{On: true, Level: slog.LevelDebug, Sample: 1}, true, 0, 0},
		{"all", RequestLog{On: true, Sample: 1}, false, 4000, 4000},
		{"none", RequestLog{On: true}, false, 0, 0},
		{"failures are never left out", RequestLog{On: true}, true, 4000, 4000},
		{"a quarter", RequestLog{On: true, Sample: 0.25}, false, 900, 1100},
	} {
		if n := count(tc.r, tc.failed); n < tc.min || n > tc.max {
			t.Errorf("%s: %d of 4000", tc.name, n)
		}
	}
	r := RequestLog{On: true, Sample: 0.5}
	for i := range 100 {
		id := fmt.Sprint(i)
		first := r.Wants(log, id, false)
		if r.Wants(log, id, false) != first {
			t.Fatal("the same id has two answers")
		}
	}
	log.Info("x", Attr("stages", []Stage{{"queue", 1234567 * time.Nanosecond}}))
	if !strings.Contains(b.String(), "stages.queue_ms=1.235") {
		t.Error(b.String())
	}
}
