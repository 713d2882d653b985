#include "vec.h"

#include "isa.h"

const tm_vec *tm_vec_for(int isa)
{
#if defined(__x86_64__)
	if (isa >= TM_ISA_AVX512) return &tm_vec_avx512;
	if (isa == TM_ISA_AVX2) return &tm_vec_avx2;
#endif
	(void)isa;
	return &tm_vec_portable;
}
