package model

import "tandem/engine/tensor"

// Ops is what an architecture needs of a device. It has two halves.
//
// The first three methods load weights; a backend packs them to its own layout
// and keeps them quantised. The rest record the forward pass: an architecture
// calls them once, in order, and the backend replays the recording for every
// batch (one native call a step on the CPU, captured graphs on CUDA). Each op
// is a phase that a backend can run fused: the norm before a projection, bias,
// rotation and cache write behind it, the residual addition at its end.
//
// Shapes are per batch row. Buffers are float32. Methods that load return an
// error that names the tensor; a recording error is kept and returned by the
// backend when the recording is sealed.
type Ops interface {
	// Matrix loads a linear weight: parts stacked along rows, all with the same
	// number of columns. Parts may differ in element type.
	Matrix(parts ...tensor.Host) (tensor.Matrix, error)
	// GateUp loads two [inter, hidden] weights as one matrix for GatedMLP.
	GateUp(gate, up tensor.Host) (tensor.Matrix, error)
	// Vector loads parts one after another as float32.
	Vector(parts ...tensor.Host) (tensor.Vector, error)

	// Buffer declares an activation of the given width per row.
	Buffer(width int) tensor.Buffer
	// Embed sets out to the table's rows of the batch's tokens.
	Embed(out tensor.Buffer, table tensor.Matrix)
	// AttnInput normalises x, projects it to q, k and v, rotates q and k, writes
	// k and v into the paged cache, and sets q [heads*headDim].
	AttnInput(q, x tensor.Buffer, a tensor.AttnInput)
	// Scale multiplies x by a factor.
	Scale(x tensor.Buffer, factor float32)
	// Attention sets out [heads*headDim] to causal attention of q over the cache,
	// of which it reads only the layer's window.
	Attention(out, q tensor.Buffer, a tensor.Attn)
	// AddLinear adds in·Wᵀ (+ bias unless None) to x.
	AddLinear(x, in tensor.Buffer, w tensor.Matrix, bias tensor.Vector)
	// Linear sets out to in·Wᵀ.
	Linear(out, in tensor.Buffer, w tensor.Matrix)
	// AddNorm adds the RMSNorm of in to x.
	AddNorm(x, in tensor.Buffer, norm tensor.Vector, eps float32)
	// GatedMLP sets out [inter] to silu(gate(n))*up(n), n the RMSNorm of x.
	GatedMLP(out, x tensor.Buffer, norm tensor.Vector, eps float32, gateUp tensor.Matrix)
	// GatedGELU is GatedMLP with gelu, in its form with tanh, in place of silu.
	GatedGELU(out, x tensor.Buffer, norm tensor.Vector, eps float32, gateUp tensor.Matrix)
	// MoE computes each row's sum over its chosen experts e that are held here of
	// weight_e * down_e(silu(gate_e(n))*up_e(n)), n the RMSNorm of x. With out == x
	// the sum is added to x; else out is set to it, zero for a row without such an
	// expert, for ranks that hold some of the experts each. The sum is a tree over
	// expert ids: the range of ids is halved (the lower part gets (lo+hi)/2) until
	// one is left, and halves without a chosen expert are skipped. So shares of
	// ranks that hold aligned halves, quarters, … add up to the same bits.
	MoE(out, x tensor.Buffer, m tensor.MoE)
	// Logits computes head·RMSNorm(x) for the batch's logit rows only. With cuts,
	// head has only this rank's rows, and every rank gets the logits of all:
	// rank r's are cuts[r] to cuts[r+1].
	Logits(x tensor.Buffer, norm tensor.Vector, eps float32, head tensor.Matrix, cuts []int)

	// The rest is for ranks of a group, which run every pass together. A pass of
	// no own rows still takes part in what concerns all. Each result has the bits
	// that one rank alone would compute, except where AddShares says otherwise.

	// Columns is a view of the columns [first, first+width) of b; what is written
	// to it leaves the other columns as they are.
	Columns(b tensor.Buffer, first, width int) tensor.Buffer
	// GatherColumns completes b on every rank: rank r has written the columns
	// cuts[r] to cuts[r+1]. For own rows, their number must be equal on all ranks.
	GatherColumns(b tensor.Buffer, cuts []int)
	// Shared declares an activation of the given width for the rows of all ranks,
	// rank 0's first. Ops from a shared buffer to a shared one run over all these
	// rows; GatherColumns completes it too.
	Shared(width int) tensor.Buffer
	// GatherRows sets out, which is shared, to the rows that all ranks have in x.
	GatherRows(out, x tensor.Buffer)
	// OwnRows sets x to this rank's rows of in, which is shared.
	OwnRows(x, in tensor.Buffer)
	// AddShares adds to each own row of x the sum over the ranks' values of that
	// row in share, which is shared or, where all ranks have the same own rows, an
	// own buffer. The sum is a tree: the ranks are halved (the lower part gets
	// (lo+hi)/2) until one is left, so that with aligned ranges of experts it has
	// the bits of a rank that holds all.
	AddShares(x, share tensor.Buffer)
}
