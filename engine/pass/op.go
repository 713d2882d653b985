package pass

import "tandem/engine/tensor"

// Kind says what an op does; see the Ops interface of the models.
type Kind int

// The ops of a forward pass.
const (
	Embed Kind = iota
	AttnInput
	Attention
	AddLinear
	GatedMLP // with silu
	MoE
	Logits
	GatherColumns
	GatherRows
	OwnRows
	AddShares
	Scale
	Linear
	AddNorm
	GatedGELU
)

// Op is one recorded op. Handles are of the recorder that made it, absent ones
// tensor.None.
type Op struct {
	Kind    Kind
	In, Out tensor.Buffer // what it reads, and what it sets or adds to

	W    tensor.Matrix // of all but attention and collectives; the router of MoE
	Norm tensor.Vector // of In
	Bias tensor.Vector
	Eps  float32

	Factor float32 // of Scale

	Input *tensor.AttnInput // of AttnInput only
	Attn  *tensor.Attn      // of Attention only
	MoE   *tensor.MoE       // of MoE only
	Cuts  []int             // of GatherColumns, and of Logits that are gathered
}

// Matrix is the shape of a loaded weight.
type Matrix struct {
	Rows, Cols int
	GateUp     bool // loaded by GateUp, for GatedMLP and MoE
}

// Buffer is an activation, or a view of columns of one.
type Buffer struct {
	Width  int
	Root   tensor.Buffer // itself, or what it is a view of
	First  int           // its first column there
	Shared bool          // of the rows of all ranks
}
