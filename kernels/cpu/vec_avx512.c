#if defined(__x86_64__)
#include "vec_avx512.h"

#include "vec_impl.h"

#include "vec_attn_impl.h"

#include "vec_pick_impl.h"

#define TM_VEC_TABLE tm_vec_avx512
#include "vec_table.h"
#endif
