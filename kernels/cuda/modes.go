package cuda

// What a product does with its sums, as the parameter mode.
const (
	OutStore = iota // y f32 = sum
	OutAdd          // y f32 += sum
	OutGated        // y bf16 [rows, n/2] = act(gate)*up, see InterleaveGateUp
	OutBF16         // y bf16 = sum
)

// Activations, as the parameter act.
const (
	SiLU = iota
	GELUTanh
	GELUErf
)

// The states of a sampled row.
const (
	StatusOK    = iota
	StatusBad   // a NaN or +Inf among the logits
	StatusEmpty // every logit is -Inf
)

// MaxTopLogprobs is the number of places that td_sample has for a row's alternatives.
const MaxTopLogprobs = 20

// SampleRow is what td_sample and td_shape_logits read for each row, in this layout.
type SampleRow struct {
	Temperature                     float64 // below 1e-5: greedy
	TopP, MinP                      float64 // 1 and 0: off
	Repetition, Frequency, Presence float64 // 1, 0, 0: off
	Seed, Index                     uint64  // Index counts the output tokens of the request
	Stream                          uint32
	TopK                            int32 // 0: off
	Logprobs                        int32 // -1: none, else how many alternatives
	Counts                          int32 // slot of the counts, -1: no penalties
	BiasFirst, BiasCount            int32 // range of the lists of biases
	BanFirst, BanCount              int32 // range of the list of bans
}

// InterleaveGateUp returns which row of a stacked weight [gate; up] of 2*inter
// rows stands at row i of the weight that mode OutGated and td_act_mul want:
// eight gates, then their eight ups.
func InterleaveGateUp(i, inter int) int {
	row := i/16*8 + i%8
	if i%16 >= 8 {
		return inter + row
	}
	return row
}
