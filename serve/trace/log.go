package trace

import (
	"context"
	"hash/fnv"
	"log/slog"
	"math"
)

// RequestLog says which requests get a line in the log. The zero value is off.
type RequestLog struct {
	On    bool
	Level slog.Level
	// Sample of the requests that succeed, 0..1. Failures always get their line.
	Sample float64
}

// Wants tells whether a request gets a line. The same id always gets the same
// answer, so the lines of frontend and workers belong together.
func (r RequestLog) Wants(log *slog.Logger, id string, failed bool) bool {
	if !r.On || !log.Enabled(context.Background(), r.Level) {
		return false
	}
	if failed || r.Sample >= 1 {
		return true
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(id)) // it never fails
	// The low bits of FNV are the better mixed ones.
	return float64(h.Sum64()<<11>>11)/math.Exp2(53) < r.Sample
}

// Attr returns stages as one group of an entry, in milliseconds.
func Attr(key string, stages []Stage) slog.Attr {
	list := make([]any, 0, len(stages))
	for _, s := range stages {
		list = append(list, slog.Float64(s.Name+"_ms", math.Round(float64(s.Took)/1e3)/1e3))
	}
	return slog.Group(key, list...)
}
