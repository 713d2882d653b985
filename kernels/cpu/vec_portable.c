#include "vec_portable.h"

#include "vec_impl.h"

#include "vec_attn_impl.h"

#include "vec_pick_impl.h"

#define TM_VEC_TABLE tm_vec_portable
#include "vec_table.h"
