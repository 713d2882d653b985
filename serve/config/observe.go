package config

import (
	"fmt"
	"log/slog"
	"slices"

	"tandem/serve/trace"
)

// Observe are the keys by which frontend and workers tell what they do.
type Observe struct {
	MetricsCompat []string `mapstructure:"metrics_compat"` // foreign names beside ours: vllm, trtllm
	ReturnPerf    bool     `mapstructure:"return_perf_metrics"`
	PerfRecords   int      `mapstructure:"perf_metrics_max_requests"` // kept for GET /perf_metrics, 0 = off
	OTLP          OTLP     `mapstructure:"otlp_config"`
	Log           Lines    `mapstructure:"request_log"`
}

// Lines is request_log.
type Lines struct {
	Level  string  `mapstructure:"level"`  // debug, info, or off
	Sample float64 `mapstructure:"sample"` // of requests that succeed
}

// Requests says which requests get a line in the log.
func (l Lines) Requests() trace.RequestLog {
	out := trace.RequestLog{On: l.Level != "off", Level: slog.LevelDebug, Sample: l.Sample}
	if l.Level == "info" {
		out.Level = slog.LevelInfo
	}
	return out
}

// OTLP is otlp_config.
type OTLP struct {
	Endpoint string  `mapstructure:"otlp_traces_endpoint"` // empty = no spans
	Ratio    float64 `mapstructure:"sample_ratio"`         // of traces that no client began
}

// defaultObserve returns the documented defaults.
func defaultObserve() Observe {
	return Observe{OTLP: OTLP{Ratio: 1}, Log: Lines{Level: "debug", Sample: 1}}
}

// Spans are the options of the tracer of a service.
func (o Observe) Spans(service, version string, log *slog.Logger) trace.Options {
	return trace.Options{Endpoint: o.OTLP.Endpoint, Ratio: o.OTLP.Ratio, Service: service, Version: version, Log: log}
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
	if !slices.Contains([]string{"debug", "info", "off"}, o.Log.Level) {
		return fmt.Errorf("request_log.level: %q is not one of debug, info, off", o.Log.Level)
	}
	if o.Log.Sample < 0 || o.Log.Sample > 1 {
		return fmt.Errorf("request_log.sample: %g is outside 0..1", o.Log.Sample)
	}
	if o.OTLP.Ratio < 0 || o.OTLP.Ratio > 1 {
		return fmt.Errorf("otlp_config.sample_ratio: %g is outside 0..1", o.OTLP.Ratio)
	}
	if o.OTLP.Endpoint != "" {
		if _, err := trace.ParseEndpoint(o.OTLP.Endpoint); err != nil {
			return fmt.Errorf("otlp_config.otlp_traces_endpoint: %w", err)
		}
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
	put("request_log", o.Log != defaultObserve().Log, map[string]any{"level": o.Log.Level, "sample": o.Log.Sample})
	put("otlp_config", o.OTLP.Endpoint != "", map[string]any{"otlp_traces_endpoint": o.OTLP.Endpoint, "sample_ratio": o.OTLP.Ratio})
	put("perf_metrics_max_requests", o.PerfRecords > 0, o.PerfRecords)
}

// Capture is trace_capture.
type Capture struct {
	Dir    string `mapstructure:"dir"`         // empty = off
	FileMB int    `mapstructure:"max_file_mb"` // of one file
	Files  int    `mapstructure:"max_files"`   // of one run of the frontend
	Routes bool   `mapstructure:"routes"`      // decisions of routers, too
}

func defaultCapture() Capture { return Capture{FileMB: 64, Files: 16} }

func (c Capture) validate() error {
	switch {
	case c.FileMB < 1 || c.FileMB > 1<<20:
		return fmt.Errorf("trace_capture.max_file_mb: %d is outside 1..%d", c.FileMB, 1<<20)
	case c.Files < 1 || c.Files > 9999:
		return fmt.Errorf("trace_capture.max_files: %d is outside 1..9999", c.Files)
	}
	return nil
}

// Options are those of package trace.
func (c Capture) Options(log *slog.Logger) trace.CaptureOptions {
	return trace.CaptureOptions{Dir: c.Dir, MaxBytes: int64(c.FileMB) << 20, MaxFiles: c.Files, Routes: c.Routes, Source: "tandem-frontend", Log: log}
}
