// The kernel table of the level that includes this file; TM_VEC_TABLE names it.
const tm_vec TM_VEC_TABLE = {
	.rmsnorm = k_rmsnorm,
	.add = k_add,
	.silu_mul = k_silu_mul,
	.gelu_mul = k_gelu_mul,
	.scale = k_scale,
	.tree_sum = k_tree_sum,
	.rope = k_rope,
	.store_k = k_store_k,
	.store_v = k_store_v,
	.attend = k_attend,
	.merge = k_merge,
	.largest = k_largest,
	.weigh = k_weigh,
	.sum_weights = k_sum_weights,
	.mass = k_mass,
	.count_before = k_count_before,
};
