package cpu

// #include "program.h"
// #include "vec.h"
//
// // The batch is put together on this side of the call, because Go must not pass
// // a struct that holds pointers into its heap.
// typedef struct { int op0, op1, rows, seqs, logit_rows, shared_rows, first_row; } tm_sizes;
//
// static void tm_run(tm_program *p, tm_sizes n, const int32_t *tokens, const int32_t *row_start,
//                    const int32_t *pos_start, const int32_t *page_start, const int32_t *pages, const int32_t *logit_row) {
//   tm_batch b = {n.rows, n.seqs, n.logit_rows, n.shared_rows, n.first_row,
//                 tokens, row_start, pos_start, page_start, pages, logit_row};
//   tm_program_run(p, &b, n.op0, n.op1);
// }
//
// static int tm_add_moe(tm_program *p, int used, int renorm, int first, int count, tm_mat **gate_up, tm_mat **down) {
//   tm_moe m = {used, renorm, first, count, (const tm_mat *const *)gate_up, (const tm_mat *const *)down};
//   return tm_program_moe(p, &m);
// }
import "C"

import (
	"errors"
	"unsafe"
)

var errMemory = errors.New("allocate a program: out of memory")

// Packing names the order of bytes inside one KV block. For bfloat16, keys of a
// head are [headDim/2][blockTokens][2] and values [blockTokens/2][headDim][2];
// for float32 [headDim][blockTokens] and [blockTokens][headDim]; for bytes
// [blockTokens/16][headDim][16] and [blockTokens][headDim], each with the scales
// [blockTokens] in bfloat16 behind. A block is [layer][keys, values][kvHead] of these.
// In blocks of 8 tokens, keys of bytes are [headDim][8].
const Packing = "kv-pair16"

// KVType is the element type of a cache.
type KVType int

// The types. Int8 has a scale for each token and head.
const (
	KVBFloat16 KVType = C.TM_KV_BF16
	KVFloat32  KVType = C.TM_KV_F32
	KVInt8     KVType = C.TM_KV_I8
)

// KV is the paged cache that a program reads and writes.
type KV struct {
	Layers, KVHeads, HeadDim, BlockTokens int
	Type                                  KVType
	Pool                                  Region // of all blocks, one after another
}

// TileBytes returns the bytes of the keys, or of the values, of one head of one
// layer in a block.
func (k KV) TileBytes() int {
	switch k.Type {
	case KVFloat32:
		return k.HeadDim * k.BlockTokens * 4
	case KVInt8:
		return (k.HeadDim + 2) * k.BlockTokens
	}
	return k.HeadDim * k.BlockTokens * 2
}

// BlockBytes returns the bytes of one block over all layers.
func (k KV) BlockBytes() int { return k.Layers * 2 * k.KVHeads * k.TileBytes() }

// OpKind says what an op does; see tensor and the Ops interface of the models.
type OpKind int

// The ops of a forward pass.
const (
	Embed     OpKind = C.TM_EMBED
	AttnInput OpKind = C.TM_ATTN_INPUT
	Attention OpKind = C.TM_ATTENTION
	AddLinear OpKind = C.TM_ADD_LINEAR
	GatedMLP  OpKind = C.TM_GATED_MLP
	Logits    OpKind = C.TM_LOGITS
	MoE       OpKind = C.TM_MOE
	Pack      OpKind = C.TM_PACK   // this rank's columns of In to the stage
	Unpack    OpKind = C.TM_UNPACK // the other ranks' columns of In from the stage
	OwnRows   OpKind = C.TM_OWN_ROWS
	AddRows   OpKind = C.TM_ADD_ROWS // Out += this rank's rows of In
	Scale     OpKind = C.TM_SCALE
	Linear    OpKind = C.TM_LINEAR
	AddNorm   OpKind = C.TM_ADD_NORM
	GatedGELU OpKind = C.TM_GATED_GELU
)

// OfLogits is the In of a Pack or Unpack of the logits, and NoCuts the Cuts of
// Logits of a matrix that has all rows.
const (
	OfLogits = -1
	NoCuts   = -1
)

// Op is one recorded op. In and Out are buffers; AddLinear adds to Out. An op
// runs over the rows that Out has. Absent matrices and vectors are nil.
type Op struct {
	Kind                     OpKind
	In, Out, Layer           int
	Heads, Window            int
	Rope                     int
	Experts                  int // index of Program.Experts, of a MoE op, whose W is the router
	Cuts                     int // index of Program.Cuts, of Pack, Unpack and Logits
	Eps, Scale               float32
	W                        *Matrix
	Norm, Bias, QNorm, KNorm []float32 // of Weights
}

// Program is a recorded forward pass. It borrows the pool, the cache and the
// matrices and vectors of its ops until it is closed.
type Program struct {
	c *C.tm_program
}

// NewProgram makes an empty program for batches of at most maxRows rows, and
// maxShared of all ranks.
func NewProgram(pool *Pool, level Level, kv KV, maxRows, maxShared int) (*Program, error) {
	ckv := C.tm_kv{
		data: (*C.char)(unsafe.Pointer(unsafe.SliceData(kv.Pool.Bytes))), layers: C.int(kv.Layers), kv_heads: C.int(kv.KVHeads),
		head_dim: C.int(kv.HeadDim), block_tokens: C.int(kv.BlockTokens), _type: C.int(kv.Type),
		tile_bytes: C.size_t(kv.TileBytes()), block_bytes: C.size_t(kv.BlockBytes()),
	}
	c := C.tm_program_new(pool.c, C.int(level), &ckv, C.int(maxRows), C.int(maxShared))
	if c == nil {
		return nil, errMemory
	}
	return &Program{c: c}, nil
}

// SetActivations chooses the form of activations, before Seal; it is Activations16
// at first.
func (p *Program) SetActivations(a Activations) { C.tm_program_bits(p.c, a.bits()) }

// Close frees the program.
func (p *Program) Close() {
	C.tm_program_free(p.c)
	p.c = nil
}

// Buffer declares an activation of width floats a row and returns its index. A
// shared one has the rows of all ranks.
func (p *Program) Buffer(width int, shared bool) (int, error) {
	return index(C.tm_program_buffer(p.c, C.int(width), cbool(shared)))
}

// View declares the columns [first, first+width) of a buffer to be one.
func (p *Program) View(of, first, width int) (int, error) {
	return index(C.tm_program_view(p.c, C.int(of), C.int(first), C.int(width)))
}

// Cuts declares that rank r has the columns cuts[r] to cuts[r+1], this one being
// own, and returns an index.
func (p *Program) Cuts(own int, cuts []int32) (int, error) {
	return index(C.tm_program_cuts(p.c, C.int(len(cuts)-1), C.int(own), ints(cuts)))
}

// Rope declares a table of rotation angles and returns its index; equal tables
// share one. invFreq holds dims/2 radians per position.
func (p *Program) Rope(dims int, adjacent bool, scale float32, invFreq []float32) (int, error) {
	return index(C.tm_program_rope(p.c, C.int(dims), cbool(adjacent), C.float(scale), floats(invFreq)))
}

// MaxExperts and MaxUsed are the most experts of a layer and of a row.
const (
	MaxExperts = C.TM_MOE_EXPERTS
	MaxUsed    = C.TM_MOE_USED
)

// Experts declares a mixture of experts and returns its index: rows use the
// `used` best of the router's, of which those from first on are held, at least
// one, with gate and up (interleaved) and down matrices of equal shapes.
func (p *Program) Experts(used int, renorm bool, first int, gateUp, down []*Matrix) (int, error) {
	list := func(all []*Matrix) **C.tm_mat {
		c := make([]*C.tm_mat, len(all))
		for i, m := range all {
			c[i] = m.c
		}
		return unsafe.SliceData(c)
	}
	return index(C.tm_add_moe(p.c, C.int(used), cbool(renorm), C.int(first), C.int(len(down)), list(gateUp), list(down)))
}

// Add appends an op.
func (p *Program) Add(op Op) error {
	c := C.tm_op{
		kind: C.int(op.Kind), in: C.int(op.In), out: C.int(op.Out), layer: C.int(op.Layer), heads: C.int(op.Heads), window: C.int(op.Window),
		rope: C.int(op.Rope), moe: C.int(op.Experts), cuts: C.int(op.Cuts), eps: C.float(op.Eps), scale: C.float(op.Scale),
		norm: floats(op.Norm), bias: floats(op.Bias), q_norm: floats(op.QNorm), k_norm: floats(op.KNorm),
	}
	if op.W != nil {
		c.w = op.W.c
	}
	_, err := index(C.tm_program_op(p.c, &c))
	return err
}

// Seal allocates all that a step needs; the program then takes no more ops.
func (p *Program) Seal() error {
	_, err := index(C.tm_program_seal(p.c))
	return err
}

// Bytes returns the activation memory of a sealed program.
func (p *Program) Bytes() int { return int(C.tm_program_bytes(p.c)) }

// Progress counts ops done since the start; it may be read during Run.
func (p *Program) Progress() uint64 { return uint64(C.tm_program_progress(p.c)) }

// WeightsRead counts the bytes of weights that runs have multiplied, those of a
// matrix once for each block of rows; it may not be read during Run.
func (p *Program) WeightsRead() uint64 { return uint64(C.tm_program_read(p.c)) }

// Batch is a checked tensor.Batch; the slices are read during Run only. The
// shared buffers have SharedRows rows, this rank's from FirstRow on.
type Batch struct {
	Tokens, RowStart, PosStart, PageStart, Pages, LogitRows []int32
	SharedRows, FirstRow                                    int
}

// Run runs the ops [from, to) of a sealed program over a batch. A batch runs all
// ops, in order; between the runs memory of the program may be changed.
func (p *Program) Run(b *Batch, from, to int) {
	n := C.tm_sizes{
		op0: C.int(from), op1: C.int(to), rows: C.int(len(b.Tokens)), seqs: C.int(len(b.PosStart)),
		logit_rows: C.int(len(b.LogitRows)), shared_rows: C.int(b.SharedRows), first_row: C.int(b.FirstRow),
	}
	C.tm_run(p.c, n, ints(b.Tokens), ints(b.RowStart), ints(b.PosStart), ints(b.PageStart), ints(b.Pages), ints(b.LogitRows))
}

// Logits is the first n floats of the logits [logit rows, vocab] of a sealed
// program, which the next run overwrites.
func (p *Program) Logits(n int) []float32 { return memory(C.tm_program_logits(p.c), n) }

// Data is the first n floats of a buffer of a sealed program.
func (p *Program) Data(buffer, n int) []float32 {
	return memory(C.tm_program_data(p.c, C.int(buffer)), n)
}

// Stage is the first n floats of the stage, which with rows > 1 rows has the
// columns of rank r from rows*cuts[r] on; one row is never staged.
func (p *Program) Stage(n int) []float32 { return memory(C.tm_program_stage(p.c), n) }

// memory is n floats of the program's, empty for none.
func memory(at *C.float, n int) []float32 {
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(at)), n)
}

func index(i C.int) (int, error) {
	if i < 0 {
		return 0, errMemory
	}
	return int(i), nil
}

func floats(s []float32) *C.float { return (*C.float)(unsafe.SliceData(s)) }
func ints(s []int32) *C.int32_t   { return (*C.int32_t)(unsafe.SliceData(s)) }
