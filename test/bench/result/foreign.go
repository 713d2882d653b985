package result

// percentiles by the name that summary files of the field have for them.
func percentiles(s Stats) map[string]float64 {
	return map[string]float64{"p50": s.P50, "p75": s.P75, "p90": s.P90, "p95": s.P95, "p99": s.P99, "p99.9": s.P999}
}

// flat is a summary with the keys of `vllm bench serve` and TensorRT-LLM's benchmark_serving, and with ours.
func flat(run *Run, step *Step, detailed bool) map[string]any {
	s := step.Summary
	m := map[string]any{
		"schema": SummarySchema, "date": run.Started, "backend": "openai", "step": step.Name, "load_model": step.Load,
		"duration": s.Duration, "completed": s.Completed, "failed": s.Failed, "num_prompts": s.Offered,
		"total_input_tokens": s.TotalIn, "total_output_tokens": s.TotalOut, "total_cached_tokens": s.TotalHit,
		"request_throughput": s.Throughput, "request_goodput": s.Goodput, "output_throughput": s.OutputTPS,
		"total_token_throughput": s.TotalTPS, "user_throughput": s.Dist["user_tps_e2e"].Mean,
		"max_concurrent_requests": s.ConcurrencyMax, "summary": s,
	}
	if len(run.Targets) > 0 {
		m["model_id"] = run.Targets[0].Model
	}
	if s.RequestRate > 0 {
		m["request_rate"] = s.RequestRate
	}
	if s.Limits == "" {
		m["request_goodput"] = nil
	}
	if step.XName != "" {
		m[step.XName] = step.X
	}
	for _, name := range []string{"ttft", "tpot", "itl", "e2el"} {
		d := s.Dist[name]
		m["mean_"+name+"_ms"], m["median_"+name+"_ms"], m["std_"+name+"_ms"] = 1000*d.Mean, 1000*d.P50, 1000*d.Std
		for p, v := range percentiles(d) {
			m[p+"_"+name+"_ms"] = 1000 * v
		}
	}
	if detailed {
		details(m, step.Records)
	}
	return m
}

// details adds the arrays of single requests, in seconds, failed ones with zeros.
func details(m map[string]any, records []*Record) {
	var in, out []int
	var ttfts, e2els, starts []float64
	var itls [][]float64
	var errs []string
	for _, r := range records {
		if r.Phase != Measured {
			continue
		}
		in, out, errs = append(in, r.Input), append(out, r.Output), append(errs, r.Error)
		starts = append(starts, float64(r.Send)/1e9)
		gaps := make([]float64, len(r.Gaps))
		for i, g := range r.Gaps {
			gaps[i] = float64(g) / 1e9
		}
		itls = append(itls, gaps)
		if r.Outcome != OK || r.First < 0 {
			ttfts, e2els = append(ttfts, 0), append(e2els, 0)
			continue
		}
		ttfts, e2els = append(ttfts, r.TTFT()), append(e2els, r.E2EL())
	}
	m["input_lens"], m["output_lens"], m["ttfts"], m["itls"], m["e2els"], m["errors"], m["start_times"] = in, out, ttfts, itls, e2els, errs, starts
}

// exported is a metric as aiperf writes it.
type exported struct {
	Unit string  `json:"unit"`
	Avg  float64 `json:"avg"`
	Min  float64 `json:"min"`
	Max  float64 `json:"max"`
	P50  float64 `json:"p50"`
	P75  float64 `json:"p75"`
	P90  float64 `json:"p90"`
	P95  float64 `json:"p95"`
	P99  float64 `json:"p99"`
	Std  float64 `json:"std"`
}

// aiperfNames maps that tool's names to our distributions, with the factor to its unit. Its inter_token_latency is our
// tpot: one mean for each request, the first token left out.
var aiperfNames = map[string]struct {
	ours, unit string
	by         float64
}{
	"time_to_first_token":              {"ttft", "ms", 1000},
	"time_to_first_output_token":       {"tfat", "ms", 1000},
	"time_to_second_token":             {"ttst", "ms", 1000},
	"request_latency":                  {"e2el", "ms", 1000},
	"inter_token_latency":              {"tpot", "ms", 1000},
	"inter_chunk_latency":              {"itl", "ms", 1000},
	"output_token_throughput_per_user": {"user_tps_decode", "tokens/sec/user", 1},
	"prefill_throughput_per_user":      {"prefill_tps", "tokens/sec/user", 1},
	"input_sequence_length":            {"in", "tokens", 1},
	"output_sequence_length":           {"out", "tokens", 1},
}

// aiperf is the run by the names of that tool.
func aiperf(run *Run, steps []Step) any {
	list := make([]map[string]any, len(steps))
	for i, st := range steps {
		m := map[string]any{"step": st.Name}
		for name, to := range aiperfNames {
			d := st.Summary.Dist[to.ours]
			if d.Count == 0 {
				continue
			}
			m[name] = exported{to.unit, d.Mean * to.by, d.Min * to.by, d.Max * to.by, d.P50 * to.by, d.P75 * to.by, d.P90 * to.by, d.P95 * to.by, d.P99 * to.by, d.Std * to.by}
		}
		m["output_token_throughput"] = map[string]any{"unit": "tokens/sec", "avg": st.Summary.OutputTPS}
		m["request_throughput"] = map[string]any{"unit": "requests/sec", "avg": st.Summary.Throughput}
		m["request_count"] = map[string]any{"unit": "requests", "avg": st.Summary.Completed}
		m["error_request_count"] = map[string]any{"unit": "requests", "avg": st.Summary.Failed}
		m["benchmark_duration"] = map[string]any{"unit": "sec", "avg": st.Summary.Duration}
		m["metadata"] = metadata(run)
		list[i] = m
	}
	if len(list) == 1 {
		return list[0]
	}
	return map[string]any{"steps": list, "metadata": metadata(run)}
}

func metadata(run *Run) map[string]any {
	m := map[string]any{"scenario": run.Workload.Name, "start_time": run.Started}
	if run.Scenario != "" {
		m["scenario"], m["submission_valid"], m["submission_invalid_reasons"] = run.Scenario, len(run.Invalid) == 0, append([]string{}, run.Invalid...)
	}
	return m
}
