package cpu

// #include "program.h"
import "C"

import "unsafe"

// PickTop is the most alternatives of a pick.
const PickTop = C.TM_PICK_TOP

// PickRule is tensor.Pick: see there for the fields. The C code has this layout.
type PickRule struct {
	Temperature, TopP, MinP float64
	Seed, Index             uint64
	Stream                  uint32
	Host, TopK, Logprobs    int32
}

// PickState tells whether there was a token to choose; the values are those of
// tensor.PickState.
type PickState int32

// Picked is what was chosen. If log-probabilities are wanted Sum is that of
// exp(logit - Top) over the row, and the first Tops of IDs and Logits are the most
// likely tokens, best first. The C code has this layout.
type Picked struct {
	Sum        float64
	Token      int32
	State      PickState
	Rank, Tops int32
	Top, Logit float32 // the largest logit, and the token's
	IDs        [PickTop]int32
	Logits     [PickTop]float32
}

// Equal sizes, or these do not compile.
var (
	_ [unsafe.Sizeof(PickRule{}) - C.sizeof_tm_pick_rule]struct{}
	_ [C.sizeof_tm_pick_rule - unsafe.Sizeof(PickRule{})]struct{}
	_ [unsafe.Sizeof(Picked{}) - C.sizeof_tm_picked]struct{}
	_ [C.sizeof_tm_picked - unsafe.Sizeof(Picked{})]struct{}
)

// Pick chooses from the first rows of the last run's logits, one for each rule, on
// all threads of the pool, and sets out. Rows that are the host's are left out.
func (p *Program) Pick(rules []PickRule, out []Picked) {
	if len(rules) == 0 {
		return
	}
	_ = out[len(rules)-1]
	C.tm_program_pick(p.c, (*C.tm_pick_rule)(unsafe.Pointer(unsafe.SliceData(rules))),
		(*C.tm_picked)(unsafe.Pointer(unsafe.SliceData(out))), C.int(len(rules)))
}
