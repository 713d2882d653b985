package cpu

// #cgo CFLAGS: -O3 -std=gnu11 -Wall
// #cgo LDFLAGS: -lm
// #include <stdlib.h>
// #include "matmul.h"
import "C"

import (
	"errors"
	"unsafe"
)

// ISA returns the name of the instruction set level that the kernels use on
// this machine: "portable", "avx2", "avx512" or "amx".
func ISA() string { return best().String() }

const cacheLine = 64

// probe is one packed matrix on its own, without pool or program: to try tiles
// with, and for the package's tests and benchmarks, which cannot call C.
type probe struct {
	mat  *C.tm_mat
	data unsafe.Pointer
	acts Activations // of runs made from here on
}

// newProbe packs stacked parts of k columns, each in panel ranges of at most
// `step` panels.
func newProbe(dtypes, rows []int, k int, interleaved bool, files [][]byte, step int) (*probe, error) {
	var dts, ns [C.TM_SEGMENTS]C.int
	for i := range min(len(dtypes), len(dts)) {
		dts[i], ns[i] = C.int(dtypes[i]), C.int(rows[i])
	}
	p := &probe{mat: (*C.tm_mat)(C.calloc(1, C.sizeof_tm_mat))}
	if C.tm_mat_layout(p.mat, C.int(len(dtypes)), &dts[0], &ns[0], C.int(k), C.int(btoi(interleaved))) != 0 {
		p.close()
		return nil, errors.New("no layout")
	}
	p.data = C.aligned_alloc(cacheLine, p.mat.bytes)
	p.mat.data = (*C.uint8_t)(p.data)
	for i, file := range files {
		panels := int(p.mat.seg[i].panels)
		for from := 0; from < panels; from += step {
			C.tm_mat_pack(p.mat, C.int(i), (*C.uint8_t)(&file[0]), C.int(from), C.int(min(from+step, panels)))
		}
	}
	return p, nil
}

func (p *probe) close() {
	C.free(p.data)
	C.free(unsafe.Pointer(p.mat))
}

func (p *probe) panels() int { return int(p.mat.panels) }
func (p *probe) cols() int   { return int(p.mat.n) }
func (p *probe) bytes() int  { return int(p.mat.bytes) }

// col returns the first output column of a panel and how many it has.
func (p *probe) col(panel int) (col, width int) {
	var w C.int
	return int(C.tm_mat_col(p.mat, C.int(panel), &w)), int(w)
}

// row returns the dequantised weights of an output column.
func (p *probe) row(col int) []float32 {
	dst := make([]float32, p.mat.k)
	C.tm_mat_row(p.mat, C.int(col), (*C.float)(&dst[0]))
	return dst
}

// probeRun is room for products of one probe with a number of rows.
type probeRun struct {
	p       *probe
	act     *C.tm_act
	rows    int
	scratch unsafe.Pointer
	mem     unsafe.Pointer
	outMem  unsafe.Pointer
	out     []float32 // [rows, cols]
}

func (p *probe) newRun(isa, rows int) *probeRun {
	k := p.mat.k
	r := &probeRun{p: p, rows: rows, act: (*C.tm_act)(C.calloc(1, C.sizeof_tm_act))}
	r.scratch = C.aligned_alloc(cacheLine, C.tm_matmul_scratch(p.mat)+cacheLine)
	acts := C.tm_mat_acts(p.mat, p.acts.bits())
	r.mem = C.aligned_alloc(cacheLine, C.tm_act_bytes(acts, C.int(rows), k))
	C.tm_act_init(r.act, C.int(isa), acts, C.int(rows), k, r.mem)
	r.outMem = C.calloc(C.size_t(rows*p.cols()), C.sizeof_float)
	r.out = unsafe.Slice((*float32)(r.outMem), rows*p.cols())
	return r
}

func (r *probeRun) close() {
	for _, m := range []unsafe.Pointer{r.scratch, r.mem, r.outMem, unsafe.Pointer(r.act)} {
		C.free(m)
	}
}

// tiled tells whether the rows are in the order of tile registers.
func (r *probeRun) tiled() bool { return r.act.tiled != 0 }

// tile forces or forbids that, before fill.
func (r *probeRun) tile(on bool) { r.act.tiled = C.int(btoi(on)) }

// fill converts rows [from, to) of x [rows, k].
func (r *probeRun) fill(x []float32, from, to int) {
	k := int(r.p.mat.k)
	C.tm_act_fill(r.act, (*C.float)(&x[from*k]), C.size_t(k), C.int(from), C.int(to))
}

// multiply computes panels [from, to) into out.
func (r *probeRun) multiply(from, to int, accumulate bool) {
	if from >= to {
		return
	}
	col, _ := r.p.col(from)
	C.tm_matmul(r.p.mat, r.act, C.int(from), C.int(to), (*C.float)(unsafe.Add(r.outMem, col*C.sizeof_float)),
		C.size_t(r.p.cols()), C.int(btoi(accumulate)), r.scratch)
}

func bestISA() int { return int(C.tm_isa_best()) }

func isaName(isa int) string { return C.GoString(C.tm_isa_name(C.int(isa))) }

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
