package request

import "time"

// ID is the instance-local id of a request, below 2^40, unique among requests
// that are alive in one worker.
type ID uint64

// Kind says which phases of a request this worker runs.
type Kind uint8

// The kinds of request.
const (
	Full           Kind = iota // prefill and decode
	ContextOnly                // prefill, first token, then hand the KV over
	GenerationOnly             // pull the KV, then decode
)

// Request is one sequence of tokens as the engine sees it. It is immutable
// once submitted; the core keeps its own record of progress.
type Request struct {
	ID        ID
	Kind      Kind
	Prompt    []int32 // P >= 1 token ids
	MaxTokens int     // G, most tokens of each choice; clamped to the context length at arrival
	// Choices is how many answers are asked for; 0 means one. They share the prefill
	// and the prompt's blocks. Choice i draws from stream Sampling.Stream + i.
	Choices  int
	Sampling Sampling
	Priority float64       // 0..1, higher first; only the PRIORITY queue looks at it
	Deadline time.Duration // on the engine clock, 0 = none

	// Retention says how firmly its blocks are kept when it has ended, nil = as any
	// other's.
	Retention *Retention

	CacheSalt      string // isolates prefix reuse between salts
	ConversationID string // bookkeeping id of the conversation
	AffinityKey    string // routing key when it differs from ConversationID
	DPRank         int    // explicit ADP rank, -1 = none
	DPRelax        bool   // DPRank is a hint

	// TransferID is the attempt's disagg_request_id: what a ctx worker leases
	// its blocks under and a gen worker attaches to. 0 for Full.
	TransferID int64
	// GenFirst: both legs of the hand-over start together. The ctx leg waits for
	// its peer before it prefills; the GenerationOnly one has no FirstTokens yet
	// and gets them with the blocks.
	GenFirst bool
	// FirstTokens are the output tokens that exist already: what the ctx worker
	// sampled, one for each choice, for GenerationOnly; what another worker decoded
	// before its stream broke, for a Full request of one choice that goes on here.
	// Decoding continues after them.
	FirstTokens []Token
	// FirstEmitted is set when the client already has FirstTokens.
	FirstEmitted bool

	// Text turns output tokens into text and finds stop strings. The core calls
	// it once for each output token, in order. Nil: no text, no stop strings.
	Text Text
	// ForkTexts are the Texts of the choices after the first; nil where Text is.
	ForkTexts []Text
	// Guide confines the output to a grammar, nil = none.
	Guide Guide `json:"-"`
	// Score asks for the log-probabilities of the prompt's tokens, nil = not.
	Score *Score
	// Shown says how Text is to be made where the request runs, which may be
	// another process. Nil: Text stays as it is.
	Shown *Shown
}

// Retention sets priorities by which the blocks of a request stay in the cache.
type Retention struct {
	Prompt []Keep // of the prompt's tokens; none overlaps another
	Output *Keep  // of the generated tokens, whose bounds mean nothing; nil = as any other
}

// Keep is a priority for the tokens From to To-1. A block with tokens of several has
// the highest.
type Keep struct {
	From, To int
	Priority uint8         // 0 to 100, 35 is that of other blocks
	For      time.Duration // since the blocks were last given back, 0 = for good
}

// Answers returns how many choices the request has, at least 1.
func (r *Request) Answers() int { return max(r.Choices, 1) }

// Guide is a grammar. Requests may share it.
type Guide interface {
	// Start returns a matcher of an empty output.
	Start() GuideMatcher
}

// GuideMatcher follows one output through a grammar.
type GuideMatcher interface {
	// Push takes the next token; false: the grammar refuses it.
	Push(token int32) bool
	// Mask returns which tokens may come next, a bit for each id, and whether the
	// output may end here. It must not be changed. An error ends the request.
	Mask() (allowed []uint64, mayEnd bool, err error)
}

// Score asks for the log-probability of each prompt token after the first, given
// those before it.
type Score struct {
	Top int // alternatives beside it, 0..20
}

// Shown is the rule by which output tokens become text.
type Shown struct {
	Stop        []string // stop strings
	IncludeStop bool     // show the stop string that ended the request
	Hidden      []int32  // tokens that give no text
	Special     []int32  // special tokens that give theirs all the same
}

// Text is the incremental detokeniser and stop-string matcher of one request.
// It must be a pure function of the tokens pushed so far.
type Text interface {
	// Push takes the next output token and returns the text that may be shown
	// because of it (possibly empty: half a character or the possible beginning
	// of a stop string is held back) and whether a stop string was completed.
	Push(token int32) (text string, stopped bool)
	// Flush returns what is still held back when the request ends otherwise.
	Flush() string
}

// Sampling holds the per-request rules of engine-core §10. The zero value is
// not valid; use DefaultSampling.
type Sampling struct {
	Temperature       float64 // >= 0; 0 = greedy
	TopK              int     // 0 = off
	TopP              float64 // (0,1]
	MinP              float64 // [0,1]
	RepetitionPenalty float64 // > 0, 1 = off
	PresencePenalty   float64 // [-2,2]
	FrequencyPenalty  float64 // [-2,2]
	LogitBias         []Bias  // sorted by token
	BadWords          [][]int32
	Allowed           []int32 // tokens that may be chosen, sorted; nil = all
	Seed              uint64
	Seeded            bool   // the client gave Seed
	Stream            uint32 // choice index, 0 for n = 1
	Logprobs          int    // -1 = none, else 0..20 alternatives beside the chosen token

	StopTokenIDs []int32
	EOS          []int32 // end-of-sequence ids of the model
	MinTokens    int
	IgnoreEOS    bool
}

// Bias is one entry of logit_bias.
type Bias struct {
	Token int32
	Value float64
}

// DefaultSampling returns greedy-free OpenAI defaults: temperature 1, no
// filters, no penalties, no logprobs.
func DefaultSampling() Sampling {
	return Sampling{Temperature: 1, TopP: 1, RepetitionPenalty: 1, Logprobs: -1}
}

// Token is one sampled token. Logprob and Top are set when logprobs were asked for.
type Token struct {
	ID      int32
	Logprob float64
	Rank    int          // 1-based rank of ID among all logits, 0 = unknown
	Top     []TopLogprob // most likely tokens, best first
}

// TopLogprob is one alternative of a position.
type TopLogprob struct {
	ID      int32
	Logprob float64
}

// Finish says why a request ended.
type Finish string

// Finish reasons. Running is the empty string.
const (
	Running           Finish = ""
	FinishStop        Finish = "stop"
	FinishLength      Finish = "length"
	FinishCancelled   Finish = "cancelled"
	FinishError       Finish = "error"
	FinishNotFinished Finish = "not_finished" // ctx leg done, decode goes on elsewhere
)

// Usage counts the tokens of one request.
type Usage struct {
	PromptTokens     int
	CompletionTokens int
	CachedTokens     int // of the prompt, not computed in the first prefill
}
