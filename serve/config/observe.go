package config

import (
	"fmt"
	"slices"
)

// Observe are the keys by which frontend and workers tell what they do.
type Observe struct {
	MetricsCompat []string `mapstructure:"metrics_compat"` // foreign names beside ours: vllm, trtllm
	ReturnPerf    bool     `mapstructure:"return_perf_metrics"`
	PerfRecords   int      `mapstructure:"perf_metrics_max_requests"` // kept for GET /perf_metrics, 0 = off
}

// maxPerfRecords bounds what records of single requests may take in memory.
const maxPerfRecords = 1 << 20

func (o Observe) validate() error {
	for _, name := range o.MetricsCompat {
		if !slices.Contains([]string{"vllm", "trtllm"}, name) {
			return fmt.Errorf("metrics_compat: %q is not one of vllm, trtllm", name)
		}
	}
	if o.PerfRecords < 0 || o.PerfRecords > maxPerfRecords {
		return fmt.Errorf("perf_metrics_max_requests: %d is outside 0..%d", o.PerfRecords, maxPerfRecords)
	}
	return nil
}

// share puts the keys that hold for the whole cluster into the file of a worker, unless that has its own.
func (o Observe) share(file map[string]any) {
	put := func(key string, set bool, val any) {
		if _, own := file[key]; set && !own {
			file[key] = val
		}
	}
	put("metrics_compat", len(o.MetricsCompat) > 0, o.MetricsCompat)
	put("return_perf_metrics", o.ReturnPerf, true)
	put("perf_metrics_max_requests", o.PerfRecords > 0, o.PerfRecords)
}
