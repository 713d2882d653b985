package config

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"tandem/engine/executor"
)

func loadWorker(t *testing.T, role executor.Role, text string) (Worker, []string, error) {
	t.Helper()
	return LoadWorker(role, Source{Data: []byte(text), LookupEnv: env()})
}

func TestWorkerExampleIsTheDefault(t *testing.T) {
	got, warnings, err := LoadWorker(executor.Ctx, Source{File: "../../configs/worker.yaml", LookupEnv: env()})
	if err != nil || len(warnings) != 0 {
		t.Fatal(err, warnings)
	}
	want, _, err := loadWorker(t, executor.Ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the example is not the defaults:\n got %+v %+v\nwant %+v %+v", got, *got.Transceiver, want, *want.Transceiver)
	}
}

func TestWorkerBadConfig(t *testing.T) {
	for _, tc := range []struct{ yaml, says string }{
		{"max_batch_sise: 4", `unknown key "max_batch_sise"; the nearest known key is "max_batch_size"`},
		{"kv_cache_config: {tokens_per_blok: 8}", `kv_cache_config.tokens_per_blok`},
		{"max_batch_size: 0", "max_batch_size: 0 must be 1 to 1048576"},
		{"max_batch_size: 9223372036854775807", "max_batch_size: 9223372036854775807 must be 1 to 1048576"},
		{"max_batch_size: many", "max_batch_size"},
		{"trust_internal_network: 'true'", "true or false without quotes"},
		{"max_num_tokens: 8", "max_num_tokens: 8 must be more than tokens_per_block"},
		{"max_seq_len: 1", "max_seq_len: 1"},
		{"tensor_parallel_size: 0", "tensor_parallel_size: 0 is outside 1..64"},
		{"tensor_parallel_size: 65", "tensor_parallel_size: 65 is outside 1..64"},
		{"{tensor_parallel_size: 4, moe_expert_parallel_size: 2}", "moe_expert_parallel_size: 2 must be tensor_parallel_size (4), or be left out"},
		{"moe_expert_parallel_size: 2", "moe_expert_parallel_size: 2 must be tensor_parallel_size (1)"},
		{"hang_timeout_sec: -1", "hang_timeout_sec: -1 must not be negative"},
		{"attention_dp_config: {enable_balanc: true}", `unknown key "attention_dp_config.enable_balanc"; the nearest known key is "enable_balance"`},
		{"attention_dp_config: {timeout_iters: -1}", "attention_dp_config.timeout_iters: must be 0 or more"},
		{"attention_dp_config: {timeout_iters: 1.5}", "expected a whole number"},
		{"attention_dp_config: {kv_cache_routing_new_conv_placement: banana}", "attention_dp_config.kv_cache_routing_new_conv_placement: "},
		{"attention_dp_config: {kv_cache_routing_fair_share_multiplier: 0.5}", "attention_dp_config.kv_cache_routing_fair_share_multiplier: must be between 1"},
		{"attention_dp_config: {kv_cache_routing_load_balance_weight: .inf}", "attention_dp_config.kv_cache_routing_load_balance_weight"},
		{"attention_dp_config: {kv_cache_routing_sticky_cap: firm}", `attention_dp_config.kv_cache_routing_sticky_cap: "firm"`},
		{
			"attention_dp_config: {enable_kv_cache_aware_routing: true, kv_cache_routing_conversation_affinity: true}",
			"attention_dp_config.kv_cache_routing_conversation_affinity: is on together with",
		},
		{"attention_dp_config: {dense_mlp: both}", `attention_dp_config.dense_mlp: "both" is not one of local, split`},
		{"attention_dp_config: true", "attention_dp_config: expected a mapping"},
		{"{threads: many, max_batch_size: some}", `got some; 'threads' expected a whole number`},
		{"backend: tpu", `backend: "tpu" is not one of auto, cpu, cuda`},
		{"tool_parser: xml", `tool_parser: "xml" is not one of auto, none, hermes, llama3_json, mistral, qwen3_coder`},
		{"reasoning_parser: loud", `reasoning_parser: "loud" is not one of auto, deepseek-r1, none, qwen3`},
		{"threads: -1", "threads: -1"},
		{"admin_addr: nowhere", "admin_addr"},
		{"stall_threshold_sec: 0", "stall_threshold_sec"},
		{"kv_cache_config: {tokens_per_block: 12}", "tokens_per_block: 12 must be a power of two"},
		{"kv_cache_config: {max_tokens: -1}", "max_tokens: -1"},
		{"kv_cache_config: {dtype: int4}", `kv_cache_config.dtype: "int4" is not one of`},
		{"kv_cache_config: {block_reuse_policy: never}", `block_reuse_policy: "never" is not one of all_reusable, per_request, per_conversation`},
		{"kv_cache_config: {max_num_turns: 0}", "max_num_turns: 0"},
		{"kv_cache_config: {host_cache_size: -1}", "host_cache_size: -1"},
		{"kv_cache_config: {host_cache_size: 9, disk_cache_size: -1}", "disk_cache_size: -1"},
		{"kv_cache_config: {host_cache_size: 9, disk_cache_dir: /d}", "disk_cache_dir: goes with disk_cache_size"},
		{"kv_cache_config: {host_cache_size: 9, disk_cache_size: 9}", "disk_cache_dir: goes with disk_cache_size"},
		{"kv_cache_config: {disk_cache_dir: /d, disk_cache_size: 9}", "disk_cache_dir: needs host_cache_size"},
		{"kv_cache_config: {offload_min_priority: 101}", "offload_min_priority: 101"},
		{"scheduler_config: {queue_policy: LIFO}", `scheduler_config.queue_policy: "LIFO" is not one of FCFS, PRIORITY`},
		{"scheduler_config: {capacity_scheduler_policy: X}", "capacity_scheduler_policy"},
		{"scheduler_config: {context_chunking_policy: X}", "context_chunking_policy"},
		{"scheduler_config: {max_queued_requests: 0}", "max_queued_requests: 0"},
		{"scheduler_config: {queue_timeout_ms: -1}", "queue_timeout_ms: -1"},
		{"cache_transceiver_config: {lease_ms: 0}", "cache_transceiver_config.lease_ms: 0 must be at least 1"},
		{"cache_transceiver_config: {control_port: 70000}", "control_port: 70000 is outside"},
		{"cache_transceiver_config: {data_port: -1}", "data_port: -1 is outside"},
		{"cache_transceiver_config: {advertise_host: '[::1]:5'}", "advertise_host"},
		{"cache_transceiver_config: {backend: rsync}", `backend: "rsync" is unknown`},
		{"cache_transceiver_config: {max_leased_fraction: 0}", "max_leased_fraction: 0"},
		{"cache_transceiver_config: {max_concurrent_recv: 0}", "max_concurrent_recv: 0"},
	} {
		_, _, err := loadWorker(t, executor.Mixed, tc.yaml)
		if err == nil || !strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want one line with %q", tc.yaml, err, tc.says)
		}
	}
}

func TestWorkerTransceiverByRole(t *testing.T) {
	for _, tc := range []struct {
		role  executor.Role
		yaml  string
		has   bool
		lease int
	}{
		{executor.Mixed, "", false, 0},
		{executor.Mixed, "cache_transceiver_config: {}", true, 60000},
		{executor.Mixed, "cache_transceiver_config: {backend: UCX, lease_ms: 5}", true, 5},
		{executor.Ctx, "", true, 60000},
		{executor.Gen, "cache_transceiver_config: {lease_ms: 5}", true, 5},
	} {
		w, _, err := loadWorker(t, tc.role, tc.yaml)
		if err != nil {
			t.Errorf("%s %q: %v", tc.role, tc.yaml, err)
			continue
		}
		if (w.Transceiver != nil) != tc.has {
			t.Errorf("%s %q: transceiver %v", tc.role, tc.yaml, w.Transceiver)
			continue
		}
		if tr := w.Transceiver; tr != nil && (tr.Lease != tc.lease || tr.TransferTimeout != 120000 || !tr.LocalRecompute || tr.Backend != "DEFAULT") {
			t.Errorf("%s %q: transceiver %+v", tc.role, tc.yaml, *tr)
		}
		h, err := w.HTTP(false)
		if err != nil || h.Transceiver != tc.has || h.Trusted {
			t.Errorf("%s %q: %+v %v", tc.role, tc.yaml, h, err)
		}
	}
}

// dtype is a key of the arithmetic; other engines' types of weights are only heard.
func TestWorkerDType(t *testing.T) {
	for text, want := range map[string]struct{ dtype, warning string }{
		"":                {"auto", ""},
		"dtype: auto":     {"auto", ""},
		"dtype: float32":  {"float32", ""},
		"dtype: float":    {"float32", "dtype: float counts as float32"},
		"dtype: bfloat16": {"auto", "dtype is ignored"},
	} {
		w, warnings, err := loadWorker(t, executor.Mixed, text)
		all := strings.Join(warnings, "\n")
		if err != nil || w.DType != want.dtype || !strings.Contains(all, want.warning) || (all == "") != (want.warning == "") {
			t.Errorf("%q: %s, %v, %v", text, w.DType, warnings, err)
		}
	}
	if _, _, err := loadWorker(t, executor.Mixed, "dtype: [1]"); err == nil {
		t.Error("a list is taken for a type")
	}
	for text, named := range map[string]string{
		"activations: int8": "", "activations: int16": "", "activations: int4": "activations", "{dtype: float32, activations: int8}": "activations",
	} {
		if _, _, err := loadWorker(t, executor.Mixed, text); (err == nil) != (named == "") || err != nil && !strings.Contains(err.Error(), named+": ") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestWorkerForeignKeys(t *testing.T) {
	w, warnings, err := loadWorker(t, executor.Gen, `
backend: pytorch
dtype: bfloat16
cuda_graph_config: {enable_padding: true, batch_sizes: [1, 2]}
enable_attention_dp: true
attention_dp_config: {enable_balance: true}
moe_tensor_parallel_size: 1
print_iter_log: true
disable_overlap_scheduler: true
moe_config: {backend: CUTLASS}
kv_cache_config: {free_gpu_memory_fraction: 0.8, enable_block_reuse: false, dtype: auto}
cache_transceiver_config: {backend: NIXL, max_tokens_in_buffer: 4096}
scheduler_config: {context_chunking_policy: FCFS}
`)
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(warnings, "\n")
	for _, want := range []string{
		"backend: pytorch counts as auto", "dtype is ignored", "cuda_graph_config.enable_padding is ignored", "enable_attention_dp has no effect with tensor_parallel_size 1", "moe_tensor_parallel_size is ignored",
		"print_iter_log is ignored: see /metrics", "moe_config",
		"cache_transceiver_config.backend: NIXL counts as DEFAULT", "cache_transceiver_config.max_tokens_in_buffer",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("no warning %q in\n%s", want, all)
		}
	}
	if w.KVCache.EnableBlockReuse || w.Scheduler.ChunkingPolicy != "FIRST_COME_FIRST_SERVED" || w.Backend != "auto" || w.DisableOverlap == nil || !*w.DisableOverlap {
		t.Errorf("%+v", w)
	}
}

// A gen worker whose step is as large as its batch, as TensorRT-LLM's files have it, keeps its batch.
func TestGenWorkersKeepTheirBatch(t *testing.T) {
	for _, tc := range []struct {
		role            executor.Role
		batch, rows     int
		want            int
		warned, lowered bool
	}{
		{executor.Gen, 64, 64, 80, true, false},
		{executor.Gen, 64, 79, 80, true, false},
		{executor.Gen, 64, 80, 80, false, false},
		{executor.Gen, 64, 32, 32, false, true}, // nobody can want both
		{executor.Ctx, 64, 64, 64, false, true}, // its step is what it was told
		{executor.Mixed, 64, 64, 64, false, true},
	} {
		w, warnings, err := loadWorker(t, tc.role, fmt.Sprintf("max_batch_size: %d\nmax_num_tokens: %d", tc.batch, tc.rows))
		if err != nil {
			t.Fatal(err)
		}
		c := executor.Config{MaxBatch: w.MaxBatchSize, MaxNumTokens: w.MaxNumTokens, BlockTokens: w.KVCache.TokensPerBlock}
		if w.MaxNumTokens != tc.want || len(warnings) > 0 != tc.warned || c.EffectiveBatch() < tc.batch != tc.lowered {
			t.Errorf("%+v: max_num_tokens %d, batch %d, %q", tc, w.MaxNumTokens, c.EffectiveBatch(), warnings)
		}
	}
}

func TestForeignKeysAreNotOurs(t *testing.T) {
	ours := Keys[Worker]()
	for key := range foreignWorker {
		for _, k := range ours {
			if key == k {
				t.Errorf("%s is both ours and foreign", key)
			}
		}
	}
}

func TestWorkerCore(t *testing.T) {
	w, _, err := loadWorker(t, executor.Gen, "max_batch_size: 3\nkv_cache_config: {enable_block_reuse: false}\nscheduler_config: {queue_timeout_ms: 250}\ncache_transceiver_config: {attach_ms: 7}")
	if err != nil {
		t.Fatal(err)
	}
	c := w.Core(executor.Gen)
	if c.Role != executor.Gen || c.MaxBatch != 3 || c.BlockReuse || c.PartialReuse || c.ShareInPass || c.QueueTimeout != 250*time.Millisecond || c.Attach != 7*time.Millisecond {
		t.Errorf("%+v", c)
	}
	if w, _, err = loadWorker(t, executor.Gen, "kv_cache_config: {tokens_per_block: 1024}"); err != nil || w.Core(executor.Gen).PrefillMixed != 1024 {
		t.Errorf("blocks larger than the limit of mixed prefill: %d, %v", w.Core(executor.Gen).PrefillMixed, err)
	}
	def, _, err := loadWorker(t, executor.Ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	want := executor.DefaultConfig()
	want.Role, want.PrefillMixed, want.PrefillPerDecode = executor.Ctx, 128, 4
	if got := def.Core(executor.Ctx); !reflect.DeepEqual(got, want) {
		t.Errorf("defaults differ:\n got %+v\nwant %+v", got, want)
	}
}

func TestWorkerEnvironment(t *testing.T) {
	w, _, err := LoadWorker(executor.Ctx, Source{
		Data: []byte("max_batch_size: 3"), Flags: map[string]any{"threads": 5},
		LookupEnv: env("TANDEM_MAX_BATCH_SIZE", "4", "TANDEM_KV_CACHE_CONFIG__MAX_TOKENS", "99", "TANDEM_CACHE_TRANSCEIVER_CONFIG__LEASE_MS", "8", "TANDEM_THREADS", "2"),
	})
	if err != nil || w.MaxBatchSize != 4 || w.KVCache.MaxTokens != 99 || w.Transceiver.Lease != 8 || w.Threads != 5 {
		t.Errorf("%+v %v", w, err)
	}
}

func TestSecret(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte("0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SOME_KEY", "fedcba9876543210")
	for _, tc := range []struct{ in, want, says string }{
		{"", "", ""},
		{"0123456789abcdef", "0123456789abcdef", ""},
		{"env:SOME_KEY", "fedcba9876543210", ""},
		{"file:" + path, "0123456789abcdef", ""},
		{"short", "", "shorter than 16 bytes"},
		{"env:NOT_SET_AT_ALL", "", "NOT_SET_AT_ALL is not set"},
		{"file:" + path + "x", "", "no such file"},
	} {
		got, err := Secret("k", tc.in)
		if tc.says == "" && (err != nil || got != tc.want) || tc.says != "" && (err == nil || !strings.Contains(err.Error(), tc.says)) {
			t.Errorf("%q: %q %v", tc.in, got, err)
		}
		if err != nil && strings.HasPrefix(tc.in, "short") && strings.Contains(err.Error(), "\"short\"") {
			t.Error("the secret is in the error")
		}
	}
}

// TestOTLPEndpointAtTheTop takes the key where other engines have it.
func TestOTLPEndpointAtTheTop(t *testing.T) {
	for text, want := range map[string]string{
		"otlp_traces_endpoint: h:1":                                                        "h:1",
		"{otlp_traces_endpoint: h:1, otlp_config: {sample_ratio: 0.5}}":                    "h:1",
		"{otlp_traces_endpoint: h:1, otlp_config: {otlp_traces_endpoint: \"http://h:2\"}}": "http://h:2",
	} {
		w, warnings, err := LoadWorker(executor.Ctx, Source{Data: []byte(text), LookupEnv: env()})
		if err != nil || len(warnings) > 0 || w.OTLP.Endpoint != want {
			t.Errorf("%s: %q %q %v", text, w.OTLP.Endpoint, warnings, err)
		}
	}
	if _, _, err := loadFrontend("context_servers: {otlp_traces_endpoint: h:1}"); err != nil {
		t.Errorf("in a section: %v", err)
	}
	if _, _, err := LoadWorker(executor.Ctx, Source{Data: []byte("{otlp_traces_endpoint: h:1, otlp_config: 7}"), LookupEnv: env()}); err == nil {
		t.Error("otlp_config: 7 loads")
	}
}
