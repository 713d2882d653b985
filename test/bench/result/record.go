package result

// Outcome says how a request ended.
type Outcome string

// The outcomes. Only OK requests enter distributions; none but them is ever good.
const (
	OK        Outcome = "ok"
	Failed    Outcome = "failed"    // transport error, error status, error event or broken stream
	Shed      Outcome = "shed"      // status 429 or 503
	Timeout   Outcome = "timeout"   // the client's own limit passed
	Cancelled Outcome = "cancelled" // the client left on purpose, or the run ended
)

// Phase says what a request is for.
type Phase string

// The phases. Only Measured requests enter a summary.
const (
	Warmup   Phase = "warmup"
	Measured Phase = "measured"
)

// Unset marks a time point that was not reached.
const Unset int64 = -1

// Record is one request as it went. Times are nanoseconds since the start of the
// run, of one monotonic (or virtual) clock; Unset = not reached.
type Record struct {
	ID           string  `json:"request_id"` // of the workload
	Seq          int     `json:"seq"`        // number in the run
	ServerID     string  `json:"server_id,omitempty"`
	Conversation string  `json:"conversation_id,omitempty"`
	Parent       string  `json:"parent_conversation_id,omitempty"`
	Turn         int     `json:"turn,omitempty"` // of its conversation, from 0
	Phase        Phase   `json:"phase"`
	Step         int     `json:"step,omitempty"` // of a sweep, or slice of a comparison
	Target       string  `json:"target,omitempty"`
	Outcome      Outcome `json:"outcome"`
	Status       int     `json:"status,omitempty"` // of HTTP
	Error        string  `json:"error,omitempty"`
	Finish       string  `json:"finish_reason,omitempty"`

	Sched       int64   `json:"t_sched"`        // the load model wanted it
	Send        int64   `json:"t_send"`         // just before its first byte, with a connection in hand
	Header      int64   `json:"t_hdr"`          // response headers complete
	First       int64   `json:"t_first"`        // first chunk with content
	FirstAnswer int64   `json:"t_first_answer"` // first chunk that is no reasoning
	Last        int64   `json:"t_last"`         // last chunk with content
	End         int64   `json:"t_end"`          // stream closed or error
	Gaps        []int64 `json:"gaps,omitempty"` // nanoseconds between chunks with content, one less than there were chunks

	Input       int    `json:"in"`  // tokens of the prompt
	Output      int    `json:"out"` // tokens of the answer
	AskedInput  int    `json:"asked_in"`
	AskedOutput int    `json:"asked_out"`
	Counted     string `json:"counted,omitempty"` // how tokens were counted: usage, tokenizer, asked, none
	Cached      int    `json:"cached"`            // prompt tokens that the server says it had

	Whole bool `json:"whole,omitempty"` // the answer came in one piece, not as a stream: First is its end, and times of tokens are not known

	PerIter float64 `json:"tokens_per_iter,omitempty"` // tokens that it says an iteration of the engine gave, 0 = it does not

	Route  string             `json:"route,omitempty"`     // the server's receipt: ranks and reasons
	Ctx    string             `json:"ctx,omitempty"`       // instance (and rank) of the prefill
	Gen    string             `json:"gen,omitempty"`       // of the decode
	Stages map[string]float64 `json:"stages_ms,omitempty"` // where the server says the time went
}

// seconds between two time points.
func seconds(from, to int64) float64 { return float64(to-from) / 1e9 }

// TTFT is the time to the first chunk, in seconds.
func (r *Record) TTFT() float64 { return seconds(r.Send, r.First) }

// TTFTCO is TTFT from the moment the load model wanted the request: waiting in the client counts.
func (r *Record) TTFTCO() float64 { return seconds(r.Sched, r.First) }

// TFAT is the time to the first chunk of the answer proper; ok is false if it was reasoning only.
func (r *Record) TFAT() (v float64, ok bool) {
	return seconds(r.Send, r.FirstAnswer), r.FirstAnswer >= 0
}

// TTST is the gap between the first and the second chunk; ok is false if there was one only.
func (r *Record) TTST() (v float64, ok bool) {
	if len(r.Gaps) == 0 {
		return 0, false
	}
	return float64(r.Gaps[0]) / 1e9, true
}

// E2EL is the time to the last chunk, in seconds.
func (r *Record) E2EL() float64 { return seconds(r.Send, r.Last) }

// E2ELCO is E2EL from the moment the load model wanted the request.
func (r *Record) E2ELCO() float64 { return seconds(r.Sched, r.Last) }

// DecodeDur is the time from the first to the last chunk, in seconds.
func (r *Record) DecodeDur() float64 { return seconds(r.First, r.Last) }

// TPOT is the time for each token after the first; ok is false for an answer of one token or none.
func (r *Record) TPOT() (v float64, ok bool) {
	if r.Output <= 1 {
		return 0, false
	}
	return r.DecodeDur() / float64(r.Output-1), true
}

// Lag is how late the client sent the request.
func (r *Record) Lag() float64 { return seconds(r.Sched, r.Send) }
