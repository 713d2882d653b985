package tensor

// Pick says how a device chooses a token from one row of logits. The rules are
// the sampler's, see engine/sampler; what changes logits before them is not among
// them.
type Pick struct {
	Host        bool    // do not choose: the host gets the logits
	Temperature float64 // 0 = greedy
	TopP, MinP  float64 // 1 and 0 = off
	TopK        int     // 0 = off
	Seed, Index uint64  // of the draw; Index counts the output tokens of the request
	Stream      uint32
	Logprobs    int // -1 = none, else how many alternatives are wanted
}

// Picked is what a device chose. Logprob, Rank and Top are set if they were wanted.
type Picked struct {
	Token   int32
	State   PickState
	Rank    int32 // 1-based
	Logprob float64
	Top     []TopPick // the most likely tokens, best first
}

// TopPick is one of the most likely tokens.
type TopPick struct {
	Token   int32
	Logprob float64
}

// PickState tells whether there was a token to choose.
type PickState int32

// The states of a pick.
const (
	PickedOne   PickState = iota
	PickedBad             // a NaN or +Inf among the logits
	PickedEmpty           // every logit is -Inf
)
