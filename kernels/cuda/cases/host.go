package cases

import "tandem/kernels/cuda"

// What a launch computes, in numbers, for backends whose data lies in other
// orders: the inputs as they are after rounding to the element type of the case,
// and what a slow float64 computation makes of them.

// Lookup is rows of a table [vocab, hidden].
type Lookup struct {
	Table  Weight
	Vocab  int
	Hidden int
	IDs    []int // some are not in the table
	Want   []float64
}

// Norm is an RMSNorm of rows [rows, cols].
type Norm struct {
	Rows, Cols int
	X, Weight  []float64
	Eps        float64
	Want       []float64
}

// Router is the product of an RMSNorm of rows with a weight [experts, hidden].
type Router struct {
	Rows, Experts, Hidden int
	X, Norm, W            []float64
	Eps                   float64
	Want                  []float64
}

// Gate is act(gate)*up of rows that interleave both by eight columns.
type Gate struct {
	Rows, Inter, Act int
	In, Want         []float64
}

// Product is x [rows, k] times the rows of a weight [n, k], with a bias.
type Product struct {
	Rows, N, K int
	X, Bias    []float64
	W          Weight
	Sums       []float64 // before the mode of the launch does something with them
}

// Heads are rows of queries, keys and values [rows, (heads+2*kvHeads)*dim] that
// get a bias, a norm of queries and keys and a rotation.
type Heads struct {
	Heads, KVHeads, Dim, Rope int
	Adjacent                  bool
	X, Bias                   []float64 // Bias is zeros where there is none
	QNorm, KNorm              []float64 // nil = none
	Eps                       float64
	Positions                 []int
	Freq                      []float64 // radians a position
	Want                      []float64 // as X
}

// Attend is attention of rows of some sequences to their own tokens.
type Attend struct {
	KV                  cuda.KV
	Heads, KVHeads, Dim int
	BlockTokens         int
	Scale               float64
	Sequences           []Sequence
}

// Sequence is the keys and values [kvHeads][tokens*dim] of a sequence, and its last
// rows of queries [rows, heads*dim], the first at a position.
type Sequence struct {
	K, V     [][]float64
	Position int
	Q, Want  []float64
}

// Route chooses the experts of rows, in ascending order, with their weights.
type Route struct {
	Rows, Experts, Used int
	Renorm              bool
	Logits              []float64
	IDs                 []int
	Weights             []float64
}

// Draw chooses tokens from rows of logits.
type Draw struct {
	Logits [][]float64
	Rows   []cuda.SampleRow
	Tokens []int
	Status []int
}
