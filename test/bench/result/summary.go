package result

// SummaryOptions are what a summary needs beside the records.
type SummaryOptions struct {
	// Window is the length of the measured time in seconds; 0 = from the first t_send to the last t_end.
	Window       float64
	Accelerators int // of all instances, 0 = rates per accelerator are left out
	Limits       Limits
	// OpenLoop tells that requests had times of their own, so that the schedule can degrade.
	OpenLoop bool
	// RequestRate is what the load model asked for, requests a second; 0 = not a rate.
	RequestRate float64
}

// Metrics are the distributions that a summary has, in the order in which they are shown.
var Metrics = []string{
	"ttft", "ttft_co", "tfat", "ttst", "tpot", "tpot_incl", "itl", "e2el", "e2el_co", "decode_dur",
	"user_tps_e2e", "user_tps_decode", "prefill_tps", "tokens_per_iter", "schedule_lag", "in", "out", "cached",
}

// Summary is one run, or one step of it.
type Summary struct {
	Duration   float64        `json:"duration"`
	Offered    int            `json:"offered"` // measured requests, however they ended
	Completed  int            `json:"completed"`
	Failed     int            `json:"failed"` // all but OK, cancelled ones not counted
	Outcomes   map[string]int `json:"outcomes"`
	TotalIn    int            `json:"total_input_tokens"`
	TotalOut   int            `json:"total_output_tokens"`
	TotalHit   int            `json:"total_cached_tokens"`
	Throughput float64        `json:"request_throughput"`
	OutputTPS  float64        `json:"output_throughput"`
	TotalTPS   float64        `json:"total_token_throughput"`

	OutputTPSPerGPU float64 `json:"output_tps_per_gpu,omitempty"`
	TotalTPSPerGPU  float64 `json:"total_tps_per_gpu,omitempty"`

	Limits         string  `json:"goodput_limits,omitempty"`
	Goodput        float64 `json:"request_goodput"`        // 0 without limits
	GoodFraction   float64 `json:"good_fraction"`          // of completed and failed
	GoodOfOffered  float64 `json:"good_fraction_offered"`  // of all offered
	ErrorRate      float64 `json:"error_rate"`             // failed but not shed, of offered
	ShedRate       float64 `json:"shed_rate"`              // of offered
	ConcurrencyAvg float64 `json:"concurrency_avg"`        // time-weighted requests in flight
	ConcurrencyMax int     `json:"concurrency_peak"`       // most at once
	CacheHit       float64 `json:"cache_hit_tokens"`       // cached / prompt tokens
	OffLength      float64 `json:"osl_mismatch_fraction"`  // completed requests more than 5 % off the asked length
	RequestRate    float64 `json:"request_rate,omitempty"` // that the load model asked for

	// Dist holds the distributions by the names of Metrics, in seconds, tokens or tokens a second.
	Dist map[string]Stats `json:"distributions"`
	// Flags say why numbers may mean less than they seem: degraded_schedule, osl_mismatch, oversaturated, errors, uncounted, and what
	// who runs the load adds: underloaded, cut_off.
	Flags []string `json:"flags"`
}
