package tensor

// Matrix, Vector and Buffer are handles that a backend gives out for what it
// holds: packed weights [out, in], float32 vectors, and float32 activations
// [rows, width] that live for one step.
type (
	Matrix int32
	Vector int32
	Buffer int32
)

// None is the handle of an absent matrix or vector (no bias, no norm).
const None = -1

// RoPE says how queries and keys are rotated by position.
type RoPE struct {
	Dims     int       // leading dimensions of a head that rotate, even; the rest pass
	Adjacent bool      // pairs are (2i, 2i+1), as GGUF stores Llama; else (i, i+Dims/2)
	InvFreq  []float32 // [Dims/2] radians per position, scaling already applied
	Scale    float32   // multiplies cos and sin (YaRN's attention factor), 1 otherwise
}

// AttnInput names everything that turns a layer's hidden state into rotated
// queries and cached keys and values.
type AttnInput struct {
	Layer   int
	Norm    Vector  // [hidden] RMSNorm weight before the projection
	Eps     float32 // of Norm, QNorm and KNorm
	QKV     Matrix  // [(heads+2*kvHeads)*headDim, hidden], rows q then k then v
	Bias    Vector  // like QKV's rows, or None
	QNorm   Vector  // [headDim] RMSNorm on each query head, or None
	KNorm   Vector  // [headDim] RMSNorm on each key head, or None
	Heads   int
	KVHeads int
	HeadDim int
	RoPE    RoPE
}

// Attn names the attention of one layer over the paged cache.
type Attn struct {
	Layer   int
	Heads   int
	KVHeads int
	HeadDim int
	Scale   float32 // multiplies q·k, usually 1/sqrt(HeadDim)
	Window  int     // positions that a query sees, its own the last; 0 = all before it
}

// MoE names a layer's mixture of experts: a router that picks a few of many
// gated MLPs for each row. A backend may hold a contiguous range of the experts
// only; the others' share then comes from the ranks that hold them.
type MoE struct {
	Norm   Vector  // [hidden] RMSNorm weight before router and experts
	Eps    float32 // of Norm
	Router Matrix  // [experts, hidden], float32, float16 or bfloat16 weights
	Used   int     // experts of a row: the largest router logits, of equal ones the lowest ids
	// Renorm makes a row's weights sum to 1: the softmax is over the chosen
	// logits, else over all.
	Renorm bool
	First  int      // expert that GateUp[0] and Down[0] belong to
	GateUp []Matrix // of each expert held: gate and up [inter, hidden] loaded for a gated MLP
	Down   []Matrix // of each expert held: [hidden, inter]
}

// KVShape is the geometry of the paged KV cache of one rank.
type KVShape struct {
	Layers      int
	KVHeads     int
	HeadDim     int
	BlockTokens int   // tokens of one block
	Blocks      int   // blocks of the pool, ids 0..Blocks-1
	DType       DType // F32, BF16 (the default), F16, F8 or I8
}

// BlockBytes returns the bytes one block takes over all layers, keys and values. I8 has
// a bfloat16 scale for the key and one for the value of each token and head.
func (s KVShape) BlockBytes() int {
	token := s.HeadDim * s.DType.GroupBytes()
	if s.DType == I8 {
		token += 2
	}
	return s.Layers * 2 * s.KVHeads * s.BlockTokens * token
}

// Batch is what one forward step runs: rows of one or more sequences, each a
// chunk of a prompt or one decode token, packed without padding. A sequence's
// rows stand together in position order. K and V of every row are written to
// the cache before any row of that layer attends, so a sequence may read
// blocks that another sequence of the same batch writes.
type Batch struct {
	Tokens    []int32 // [rows] token ids
	RowStart  []int32 // [seqs+1] first row of each sequence
	PosStart  []int32 // [seqs] position of each sequence's first row
	PageStart []int32 // [seqs+1] first entry of each sequence in Pages
	Pages     []int32 // block ids; entry p of a sequence holds positions [p*BlockTokens, (p+1)*BlockTokens); -1 = none, where no layer's window reaches
	LogitRows []int32 // rows whose logits are wanted, ascending
	// Feed is, for each row, the row of logits of the batch launched before whose
	// picked token is this row's, -1 where Tokens has it. Empty: Tokens has them all.
	// Only devices that launch steps know it.
	Feed []int32
	// RankRows is how many rows each rank of the group has in this step, by rank;
	// nil on a backend without a group.
	RankRows []int
}

// Rows returns the number of rows.
func (b *Batch) Rows() int { return len(b.Tokens) }

// Seqs returns the number of sequences.
func (b *Batch) Seqs() int { return len(b.PosStart) }

// Reset empties the batch and keeps its memory.
func (b *Batch) Reset() {
	b.Tokens = b.Tokens[:0]
	b.RowStart = append(b.RowStart[:0], 0)
	b.PosStart = b.PosStart[:0]
	b.PageStart = append(b.PageStart[:0], 0)
	b.Pages = b.Pages[:0]
	b.LogitRows = b.LogitRows[:0]
	b.Feed = b.Feed[:0]
	b.RankRows = nil
}

// Add appends a sequence: its tokens from position pos on and its page table,
// which must cover pos+len(tokens) positions. With wantLogits the logits of the
// last of its rows are computed.
func (b *Batch) Add(tokens []int32, pos int, pages []int32, wantLogits bool) {
	b.Tokens = append(b.Tokens, tokens...)
	b.RowStart = append(b.RowStart, int32(len(b.Tokens)))
	b.PosStart = append(b.PosStart, int32(pos))
	b.Pages = append(b.Pages, pages...)
	b.PageStart = append(b.PageStart, int32(len(b.Pages)))
	if wantLogits {
		b.LogitRows = append(b.LogitRows, int32(len(b.Tokens)-1))
	}
}
