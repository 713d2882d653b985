package cpu

// #include "program.h"
//
// // The batch is put together on this side of the call, because Go must not pass
// // a struct that holds pointers into its heap.
// static void tm_run(tm_program *p, int rows, int seqs, int logit_rows, const int32_t *tokens, const int32_t *row_start,
//                    const int32_t *pos_start, const int32_t *page_start, const int32_t *pages, const int32_t *logit_row) {
//   tm_batch b = {rows, seqs, logit_rows, tokens, row_start, pos_start, page_start, pages, logit_row};
//   tm_program_run(p, &b);
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
// for float32 [headDim][blockTokens] and [blockTokens][headDim]. A block is
// [layer][keys, values][kvHead] of these.
const Packing = "kv-pair16"

// KV is the paged cache that a program reads and writes.
type KV struct {
	Layers, KVHeads, HeadDim, BlockTokens int
	F32                                   bool   // float32 elements, else bfloat16
	Pool                                  Region // of all blocks, one after another
}

// TileBytes returns the bytes of the keys, or of the values, of one head of one
// layer in a block.
func (k KV) TileBytes() int {
	if k.F32 {
		return k.HeadDim * k.BlockTokens * 4
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
)

// Op is one recorded op. In and Out are buffers; AddLinear adds to Out. Absent
// matrices and vectors are nil.
type Op struct {
	Kind                     OpKind
	In, Out, Layer           int
	Heads                    int
	Rope                     int
	Experts                  int // index of Program.Experts, of a MoE op, whose W is the router
	Eps, Scale               float32
	W                        *Matrix
	Norm, Bias, QNorm, KNorm []float32 // of Weights
}

// Program is a recorded forward pass. It borrows the pool, the cache and the
// matrices and vectors of its ops until it is closed.
type Program struct {
	c     *C.tm_program
	vocab int
}

// NewProgram makes an empty program for batches of at most maxRows rows.
func NewProgram(pool *Pool, level Level, kv KV, maxRows int) (*Program, error) {
	ckv := C.tm_kv{
		data: (*C.char)(unsafe.Pointer(unsafe.SliceData(kv.Pool.Bytes))), layers: C.int(kv.Layers), kv_heads: C.int(kv.KVHeads),
		head_dim: C.int(kv.HeadDim), block_tokens: C.int(kv.BlockTokens), f32: cbool(kv.F32),
		tile_bytes: C.size_t(kv.TileBytes()), block_bytes: C.size_t(kv.BlockBytes()),
	}
	c := C.tm_program_new(pool.c, C.int(level), &ckv, C.int(maxRows))
	if c == nil {
		return nil, errMemory
	}
	return &Program{c: c}, nil
}

// Close frees the program.
func (p *Program) Close() {
	C.tm_program_free(p.c)
	p.c = nil
}

// Buffer declares an activation of width floats a row and returns its index.
func (p *Program) Buffer(width int) (int, error) {
	return index(C.tm_program_buffer(p.c, C.int(width)))
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
		kind: C.int(op.Kind), in: C.int(op.In), out: C.int(op.Out), layer: C.int(op.Layer), heads: C.int(op.Heads),
		rope: C.int(op.Rope), moe: C.int(op.Experts), eps: C.float(op.Eps), scale: C.float(op.Scale),
		norm: floats(op.Norm), bias: floats(op.Bias), q_norm: floats(op.QNorm), k_norm: floats(op.KNorm),
	}
	if op.W != nil {
		c.w = op.W.c
	}
	if op.Kind == Logits {
		p.vocab = op.W.Rows
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

// Batch is a checked tensor.Batch; the slices are read during Run only.
type Batch struct {
	Tokens, RowStart, PosStart, PageStart, Pages, LogitRows []int32
}

// Run runs a sealed program over a batch of at least one row, and returns the
// logits [len(LogitRows), vocab], which are the program's until its next run.
func (p *Program) Run(b Batch) []float32 {
	C.tm_run(p.c, C.int(len(b.Tokens)), C.int(len(b.PosStart)), C.int(len(b.LogitRows)), ints(b.Tokens), ints(b.RowStart),
		ints(b.PosStart), ints(b.PageStart), ints(b.Pages), ints(b.LogitRows))
	if len(b.LogitRows) == 0 || p.vocab == 0 {
		return nil
	}
	logits := (*float32)(unsafe.Pointer(C.tm_program_logits(p.c)))
	return unsafe.Slice(logits, len(b.LogitRows)*p.vocab)
}

func index(i C.int) (int, error) {
	if i < 0 {
		return 0, errMemory
	}
	return int(i), nil
}

func floats(s []float32) *C.float { return (*C.float)(unsafe.SliceData(s)) }
func ints(s []int32) *C.int32_t   { return (*C.int32_t)(unsafe.SliceData(s)) }
