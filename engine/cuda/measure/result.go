package measure

// Result is one timing. Counts that mean nothing for it are zero.
type Result struct {
	Name    string  `json:"name"`
	Rows    int     `json:"rows,omitempty"` // of the activations
	N       int     `json:"n,omitempty"`    // rows of the weight
	K       int     `json:"k,omitempty"`    // columns of the weight
	Batch   int     `json:"batch,omitempty"`
	Context int     `json:"context,omitempty"`
	Seconds float64 `json:"seconds"`         // of one call
	Bytes   float64 `json:"bytes,omitempty"` // that it reads and writes at the least
	Flop    float64 `json:"flop,omitempty"`
}

// Names of results that others are compared with.
const (
	Copy = "copy"          // device to device, bytes read and written
	Cube = "product, cube" // of matrices of 8192, the best of all algorithms
)

// Model is the shape of the model whose pieces are measured.
type Model struct {
	Hidden, Inter, Heads, KVHeads, HeadDim, Vocab int
}

// Sizes says how much is measured.
type Sizes struct {
	Model       Model
	Bytes       int64 // of a buffer; two are allocated, or what fits
	Rounds      int   // of each timing, of which the median counts
	Calls       int   // in a round, at the most
	Cube        int   // size of the cube
	Context     int   // of decode attention
	Batches     []int // of decode attention
	Chunks      []int // tokens of prefill attention
	Rows        []int // of products
	BlockTokens int
}

// Full measures what a model of eight billion parameters needs, in a minute.
func Full() Sizes {
	return Sizes{
		Model: Model{Hidden: 4096, Inter: 14336, Heads: 32, KVHeads: 8, HeadDim: 128, Vocab: 128256},
		Bytes: 4 << 30, Rounds: 3, Calls: 50, Cube: 8192,
		Context: 4096, Batches: []int{1, 16, 64}, Chunks: []int{1024, 8192},
		Rows: []int{1, 16, 64, 256, 4096, 8192}, BlockTokens: 32,
	}
}

// Tiny runs every measurement once, for an emulator; its times mean nothing.
func Tiny() Sizes {
	return Sizes{
		Model: Model{Hidden: 64, Inter: 64, Heads: 4, KVHeads: 2, HeadDim: 16, Vocab: 64},
		Bytes: 1 << 18, Rounds: 1, Calls: 2, Cube: 64,
		Context: 40, Batches: []int{1, 2}, Chunks: []int{24}, Rows: []int{1, 40}, BlockTokens: 16,
	}
}
