package config

import (
	"fmt"
	"reflect"
	"strings"
)

// otherFlags are flags of the servers of other engines, with underscores, and what does the same here: a flag, or a key.
var otherFlags = map[string]string{
	"server_role": "--role", "disaggregation_mode": "--role", "l": "--log-level", "log_level": "--log-level",
	"m": "metadata_server_config_file", "r": "request_timeout_sec", "t": "server_start_timeout_sec",
	"tp": "tensor_parallel_size", "tp_size": "tensor_parallel_size", "enable_dp_attention": "enable_attention_dp",
	"max_model_len": "max_seq_len", "context_length": "max_seq_len", "ctx_size": "max_seq_len",
	"max_num_seqs": "max_batch_size", "max_running_requests": "max_batch_size",
	"max_num_batched_tokens": "max_num_tokens", "chunked_prefill_size": "max_num_tokens",
	"gpu_memory_utilization":            "kv_cache_config.free_gpu_memory_fraction",
	"mem_fraction_static":               "kv_cache_config.free_gpu_memory_fraction",
	"kv_cache_free_gpu_memory_fraction": "kv_cache_config.free_gpu_memory_fraction",
	"kv_cache_dtype":                    "kv_cache_config.dtype", "enable_prefix_caching": "kv_cache_config.enable_block_reuse",
	"block_size": "kv_cache_config.tokens_per_block", "page_size": "kv_cache_config.tokens_per_block",
	"ssl_certfile": "tls.cert", "ssl_keyfile": "tls.key", "api_key": "api_keys",
}

// UnknownFlag tells in the error about a flag that does not exist what to use instead, if T has a key of that name or the
// flag is one of other engines. The flag comes without its dashes.
func UnknownFlag[T any](err error, flag string) error {
	name := strings.ReplaceAll(strings.ToLower(flag), "-", "_")
	if other, ok := otherFlags[name]; ok {
		name = other
	}
	if strings.HasPrefix(name, "--") {
		return fmt.Errorf("%w: here it is %s", err, name)
	}
	var found []string
	for _, leaf := range leaves(reflect.TypeFor[T](), nil) {
		path := strings.Join(leaf.path, ".")
		if path == name {
			return fmt.Errorf("%w: set the key %s in the file that -c names", err, path)
		}
		if strings.HasSuffix(path, "."+name) {
			found = append(found, path)
		}
	}
	if len(found) == 1 {
		return fmt.Errorf("%w: set the key %s in the file that -c names", err, found[0])
	}
	return err
}
