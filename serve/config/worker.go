package config

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"tandem/engine/executor"
	"tandem/engine/runner"
	"tandem/engine/scheduler"
	"tandem/engine/tensor"
)

// Worker is the YAML tree of one engine process. Sizes are in the unit their
// key names; 0 of a size means "derive it" where the comment says so.
type Worker struct {
	Backend         string `mapstructure:"backend"`           // auto, cpu or cuda; pytorch and tensorrt count as auto
	ServedModelName string `mapstructure:"served_model_name"` // empty = from the model
	MaxBatchSize    int    `mapstructure:"max_batch_size"`    // requests a step
	MaxNumTokens    int    `mapstructure:"max_num_tokens"`    // rows a step
	MaxSeqLen       int    `mapstructure:"max_seq_len"`       // prompt and output, 0 = the model's

	TensorParallelSize    int         `mapstructure:"tensor_parallel_size"`     // ranks, 1..MaxRanks
	MoeExpertParallelSize int         `mapstructure:"moe_expert_parallel_size"` // 1, or the number of ranks
	EnableAttentionDP     bool        `mapstructure:"enable_attention_dp"`      // of no effect on one rank
	AttentionDP           AttentionDP `mapstructure:"attention_dp_config"`
	HangTimeoutSec        float64     `mapstructure:"hang_timeout_sec"` // 0 = off

	KVCache     KVCache      `mapstructure:"kv_cache_config"`
	CUDAGraph   CUDAGraph    `mapstructure:"cuda_graph_config"`
	Scheduler   Scheduling   `mapstructure:"scheduler_config"`
	Transceiver *Transceiver `mapstructure:"cache_transceiver_config"` // nil: whole requests only, on a mixed worker

	Cluster Cluster `mapstructure:"disagg_cluster"`

	EnableChunkedPrefill bool `mapstructure:"enable_chunked_prefill"`

	DisableOverlap *bool `mapstructure:"disable_overlap_scheduler"` // nil: as the backend does best

	AuthKey        string  `mapstructure:"internal_request_auth_key"` // literal, env:NAME or file:PATH
	TrustNetwork   bool    `mapstructure:"trust_internal_network"`
	StallThreshold float64 `mapstructure:"stall_threshold_sec"`
	ShutdownGrace  float64 `mapstructure:"shutdown_grace_sec"`
	ExposeRouting  bool    `mapstructure:"expose_routing_headers"`
	Threads        int     `mapstructure:"threads"`            // 0 = the cores this process may use
	ThreadsNice    int     `mapstructure:"threads_nice"`       // priority of compute threads, as of nice(2)
	PinThreads     bool    `mapstructure:"pin_threads"`        // each to a processor
	PinSkip        int     `mapstructure:"pin_threads_skip"`   // processors that are for other workers
	AdminAddr      string  `mapstructure:"admin_addr"`         // host:port, or off
	PackedDir      string  `mapstructure:"packed_weights_dir"` // empty = in the folder of models and caches, or off
	DType          string  `mapstructure:"dtype"`              // of arithmetic with weights: auto or float32
	Activations    string  `mapstructure:"activations"`        // beside quantised weights: auto, int16 or int8

	TLS TLS `mapstructure:"tls"`

	Deterministic bool `mapstructure:"deterministic"` // of a GPU; the CPU always is

	AllowChatTemplate bool `mapstructure:"allow_request_chat_template"` // rendered in processes of their own

	ToolParser      string `mapstructure:"tool_parser"`      // of toolParsers
	ReasoningParser string `mapstructure:"reasoning_parser"` // of reasoningParsers

	Observe `mapstructure:",squash"`
}

// KVCache is kv_cache_config.
type KVCache struct {
	EnableBlockReuse   bool   `mapstructure:"enable_block_reuse"`
	EnablePartialReuse bool   `mapstructure:"enable_partial_reuse"`
	BlockReusePolicy   string `mapstructure:"block_reuse_policy"` // all_reusable, per_request or per_conversation
	MaxNumTurns        int    `mapstructure:"max_num_turns"`      // with per_conversation: turns that keep their blocks
	TokensPerBlock     int    `mapstructure:"tokens_per_block"`
	MaxTokens          int    `mapstructure:"max_tokens"`            // of the pool, 0 = derive from memory
	DType              string `mapstructure:"dtype"`                 // of kvTypes
	EventBuffer        int    `mapstructure:"event_buffer_max_size"` // changes of a rank kept for readers, 0 = none
	Namespace          string `mapstructure:"namespace"`             // empty = served name @ fingerprint

	HostCacheSize      int64  `mapstructure:"host_cache_size"`      // bytes of the host tier of each rank, 0 = none
	DiskCacheDir       string `mapstructure:"disk_cache_dir"`       // empty = no disk tier
	DiskCacheSize      int64  `mapstructure:"disk_cache_size"`      // bytes of each rank's files
	OffloadMinPriority int    `mapstructure:"offload_min_priority"` // of blocks that go to the host when they must leave

	MemoryFraction float64 `mapstructure:"free_gpu_memory_fraction"` // of what weights leave, on a GPU without max_tokens
}

// kvTypes are the values of kv_cache_config.dtype; fp8 is E4M3 without scales, int8
// has one for each token and head.
var kvTypes = map[string]tensor.DType{
	"auto": tensor.BF16, "bfloat16": tensor.BF16, "float16": tensor.F16, "float32": tensor.F32, "fp8": tensor.F8,
	"int8": tensor.I8,
}

// Type is the element type of the cache. A backend may refuse it.
func (k KVCache) Type() tensor.DType { return kvTypes[k.DType] }

// CUDAGraph is cuda_graph_config: which decode batches a GPU runs as one launch.
type CUDAGraph struct {
	BatchSizes   []int `mapstructure:"batch_sizes"`    // empty = the usual ones up to MaxBatchSize
	MaxBatchSize int   `mapstructure:"max_batch_size"` // -1 = the worker's, 0 = none
}

func (g CUDAGraph) validate() error {
	const at = "cuda_graph_config."
	if g.MaxBatchSize < -1 {
		return fmt.Errorf(at+"max_batch_size: %d must be at least 0, or -1 for the worker's", g.MaxBatchSize)
	}
	for _, n := range g.BatchSizes {
		if n < 1 {
			return fmt.Errorf(at+"batch_sizes: %d must be at least 1", n)
		}
	}
	return nil
}

// Sizes are the batch sizes to capture, ascending, for a worker of at most that
// many requests a step.
func (g CUDAGraph) Sizes(most int) []int {
	if g.MaxBatchSize >= 0 {
		most = min(most, g.MaxBatchSize)
	}
	sizes := slices.Clone(g.BatchSizes)
	if len(sizes) == 0 {
		sizes = runner.GraphSizes(most)
	}
	slices.Sort(sizes)
	return slices.DeleteFunc(slices.Compact(sizes), func(n int) bool { return n > most })
}

// Scheduling is scheduler_config.
type Scheduling struct {
	CapacityPolicy   string `mapstructure:"capacity_scheduler_policy"`
	ChunkingPolicy   string `mapstructure:"context_chunking_policy"`
	QueuePolicy      string `mapstructure:"queue_policy"`
	MaxPrefillMixed  int    `mapstructure:"max_prefill_tokens_mixed"`  // 0 = max_num_tokens
	PrefillPerDecode int    `mapstructure:"prefill_tokens_per_decode"` // 0 = no limit
	MaxQueued        int    `mapstructure:"max_queued_requests"`
	QueueTimeoutMsec int    `mapstructure:"queue_timeout_ms"` // 0 = off
}

// Transceiver is cache_transceiver_config; times in milliseconds.
type Transceiver struct {
	Backend           string  `mapstructure:"backend"` // DEFAULT, TCP
	TransferTimeout   int     `mapstructure:"kv_transfer_timeout_ms"`
	Lease             int     `mapstructure:"lease_ms"`
	Attach            int     `mapstructure:"attach_ms"`
	Progress          int     `mapstructure:"progress_ms"`
	PeerWait          int     `mapstructure:"peer_wait_ms"`
	ControlPort       int     `mapstructure:"control_port"`   // 0 = any free one
	DataPort          int     `mapstructure:"data_port"`      // 0 = any free one
	AdvertiseHost     string  `mapstructure:"advertise_host"` // where other workers reach this one, empty = --host
	MaxConcurrentRecv int     `mapstructure:"max_concurrent_recv"`
	MaxInflightBytes  int64   `mapstructure:"max_inflight_bytes"`
	MaxLeasedFraction float64 `mapstructure:"max_leased_fraction"` // 1 = no cap
	LocalRecompute    bool    `mapstructure:"local_recompute"`
}

// These bound the gap between tokens that a long prompt causes: on a CPU larger chunks
// are hardly faster, and the others' tokens wait for all of a chunk.
const (
	cpuPrefillMixed     = 128
	cpuPrefillPerDecode = 4
)

// maxBatch is more than any worker runs, and little enough to make lists of.
const maxBatch = 1 << 20

// DefaultWorker returns the documented defaults of a worker on a CPU without a
// cache_transceiver_config.
func DefaultWorker() Worker {
	c := executor.DefaultConfig()
	return Worker{
		Observe: defaultObserve(), Backend: "auto", MaxBatchSize: c.MaxBatch, MaxNumTokens: c.MaxNumTokens,
		TensorParallelSize: 1, MoeExpertParallelSize: 1, AttentionDP: defaultAttentionDP(), HangTimeoutSec: defaultHangTimeout,
		KVCache: KVCache{
			EnableBlockReuse: c.BlockReuse, EnablePartialReuse: c.PartialReuse, BlockReusePolicy: string(c.Reuse), MaxNumTurns: c.MaxTurns,
			OffloadMinPriority: int(c.Tiers.MinPriority),
			TokensPerBlock:     c.BlockTokens, DType: "auto", EventBuffer: c.EventBuffer, MemoryFraction: runner.DefaultMemory,
		},
		CUDAGraph: CUDAGraph{MaxBatchSize: -1},
		Scheduler: Scheduling{
			CapacityPolicy: string(c.Policy), ChunkingPolicy: string(c.Chunking), QueuePolicy: string(c.Queue),
			MaxQueued: c.MaxQueued, MaxPrefillMixed: cpuPrefillMixed, PrefillPerDecode: cpuPrefillPerDecode,
		},
		Cluster: defaultCluster(), EnableChunkedPrefill: c.ChunkPrefill, StallThreshold: 10, ShutdownGrace: 30,
		AdminAddr: "127.0.0.1:0", DType: "auto", Activations: "auto", ToolParser: byTemplate, ReasoningParser: byTemplate,
	}
}

// onGPU changes the defaults to those of a worker on a GPU, whose steps are larger.
func (w Worker) onGPU() Worker {
	w.MaxBatchSize, w.MaxNumTokens, w.KVCache.TokensPerBlock, w.Scheduler.MaxPrefillMixed = 256, 8192, 32, 0
	w.Scheduler.PrefillPerDecode = 0
	return w
}

// DefaultTransceiver returns the documented defaults of cache_transceiver_config.
func DefaultTransceiver() Transceiver {
	c := executor.DefaultConfig()
	ms := func(d time.Duration) int { return int(d / time.Millisecond) }
	return Transceiver{
		Backend: "DEFAULT", TransferTimeout: ms(c.RecvTotal), Lease: ms(c.Lease), Attach: ms(c.Attach), Progress: ms(c.Progress), PeerWait: ms(c.PeerWait),
		MaxConcurrentRecv: c.MaxConcurrentRecv, MaxInflightBytes: c.MaxInflightBytes,
		MaxLeasedFraction: c.MaxLeasedFraction, LocalRecompute: c.LocalRecompute,
	}
}

// LoadWorker loads a worker's configuration over the defaults. The roles ctx
// and gen imply a cache_transceiver_config; a mixed worker has one only if its
// file has the section, empty ({}) or not. Warnings are for the log.
func LoadWorker(role executor.Role, src Source) (Worker, []string, error) {
	def := DefaultWorker()
	if src.GPU {
		def = def.onGPU()
	}
	tr := DefaultTransceiver()
	def.Transceiver = &tr
	if src.Foreign == nil {
		src.Foreign = foreignWorker
	}
	named, adp := role != executor.Mixed, false
	user := src.Renamed
	src.Renamed = func(tree map[string]any) []string {
		var warnings []string
		if user != nil {
			warnings = user(tree)
		}
		if _, ok := tree["cache_transceiver_config"]; ok {
			named = true
		}
		_, adp = tree["attention_dp_config"]
		return append(warnings, renameWorker(tree)...)
	}
	w, warnings, err := Load(def, src)
	if err != nil {
		return w, warnings, err
	}
	if !named {
		w.Transceiver = nil
	}
	if role == executor.Gen {
		warnings = append(warnings, w.roomForPrefill()...)
	}
	if kv := &w.KVCache; !kv.EnableBlockReuse && (kv.HostCacheSize > 0 || kv.DiskCacheDir != "") {
		warnings = append(warnings, "kv_cache_config: host_cache_size and disk_cache_dir have no effect without enable_block_reuse")
	}
	return w, append(warnings, w.rankWarnings(adp)...), nil
}

// roomForPrefill keeps the batch of a worker that decodes, where max_num_tokens is just as large, as other engines want it:
// the engine would lower the batch, so that a step has room for a block of prefill (of prompts that could not be fetched).
func (w *Worker) roomForPrefill() (warnings []string) {
	need := w.MaxBatchSize + w.KVCache.TokensPerBlock
	if w.MaxNumTokens < w.MaxBatchSize || w.MaxNumTokens >= need {
		return nil
	}
	warnings = []string{fmt.Sprintf("max_num_tokens: %d is raised to %d: a step also has room for a block of prefill", w.MaxNumTokens, need)}
	w.MaxNumTokens = need
	return warnings
}

// liftOTLP takes otlp_traces_endpoint at the top, where other engines have it, as the key of otlp_config, whose own wins.
func liftOTLP(tree map[string]any) {
	at, ok := tree["otlp_traces_endpoint"]
	if !ok {
		return
	}
	delete(tree, "otlp_traces_endpoint")
	section, ok := tree["otlp_config"].(map[string]any)
	if !ok && tree["otlp_config"] != nil {
		return // the error will be about that one
	}
	if section == nil {
		section = map[string]any{}
		tree["otlp_config"] = section
	}
	if section["otlp_traces_endpoint"] == nil {
		section["otlp_traces_endpoint"] = at
	}
}

// renameWorker accepts the spellings of other engines, in place.
func renameWorker(tree map[string]any) (warnings []string) {
	alias := func(at map[string]any, section, key string, names map[string]string) {
		text, ok := at[key].(string)
		if ours, known := names[strings.ToLower(text)]; ok && known {
			at[key] = ours
			warnings = append(warnings, fmt.Sprintf("%s: %s counts as %s", section+key, text, ours))
		}
	}
	alias(tree, "", "dtype", map[string]string{"float": "float32"})
	if text, ok := tree["dtype"].(string); ok && text != "auto" && text != "float32" {
		delete(tree, "dtype")
		warnings = append(warnings, "dtype is ignored: weights keep the type they are stored in")
	}
	liftOTLP(tree)
	alias(tree, "", "backend", map[string]string{"pytorch": "auto", "tensorrt": "auto", "trt": "auto", "_autodeploy": "auto"})
	if sched, ok := tree["scheduler_config"].(map[string]any); ok && sched["context_chunking_policy"] == "FCFS" {
		sched["context_chunking_policy"] = string(scheduler.FirstCome)
	}
	if tr, ok := tree["cache_transceiver_config"].(map[string]any); ok {
		alias(tr, "cache_transceiver_config.", "backend", map[string]string{"ucx": "DEFAULT", "nixl": "DEFAULT", "mpi": "DEFAULT", "mooncake": "DEFAULT"})
	}
	return warnings
}

// Validate reports the first thing that is wrong, by its YAML key.
func (w Worker) Validate() error {
	var errs []error
	bad := func(cond bool, format string, args ...any) {
		if cond {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	oneOf := func(key, val string, words ...string) {
		bad(!slices.Contains(words, val), "%s: %q is not one of %s", key, val, strings.Join(words, ", "))
	}
	oneOf("backend", w.Backend, "auto", "cpu", "cuda")
	oneOf("tool_parser", w.ToolParser, toolParsers()...)
	oneOf("reasoning_parser", w.ReasoningParser, reasoningParsers()...)
	bad(w.MaxBatchSize < 1 || w.MaxBatchSize > maxBatch, "max_batch_size: %d must be 1 to %d", w.MaxBatchSize, maxBatch)
	bad(w.MaxNumTokens < w.KVCache.TokensPerBlock+1, "max_num_tokens: %d must be more than tokens_per_block (%d)", w.MaxNumTokens, w.KVCache.TokensPerBlock)
	bad(w.MaxSeqLen < 0 || w.MaxSeqLen == 1, "max_seq_len: %d must be at least 2, or 0 for the model's own", w.MaxSeqLen)
	bad(w.StallThreshold <= 0, "stall_threshold_sec: %g must be above 0", w.StallThreshold)
	bad(w.ShutdownGrace < 0, "shutdown_grace_sec: %g must not be negative", w.ShutdownGrace)
	bad(w.Threads < 0 || w.Threads > 1024, "threads: %d must be 1 to 1024, or 0 for all cores", w.Threads)
	bad(w.DType != "auto" && w.DType != "float32", "dtype: %q must be auto or float32", w.DType)
	bad(!slices.Contains([]string{"auto", "int16", "int8"}, w.Activations), "activations: %q must be auto, int16 or int8", w.Activations)
	bad(w.DType == "float32" && w.Activations == "int8", "activations: int8 is of quantised weights, which dtype: float32 decodes: drop one of them")
	bad(w.ThreadsNice < 0 || w.ThreadsNice > 19, "threads_nice: %d must be 0 to 19", w.ThreadsNice)
	bad(w.PinSkip < 0, "pin_threads_skip: %d must not be negative", w.PinSkip)
	if err := w.TLS.validate(); err != nil {
		errs = append(errs, err)
	}
	if w.AdminAddr != "off" {
		_, _, err := net.SplitHostPort(w.AdminAddr)
		bad(err != nil, "admin_addr: %q must be host:port or off", w.AdminAddr)
	}
	if err := errors.Join(errs...); err != nil {
		return first(err)
	}
	return first(errors.Join(w.Cluster.validate(""), w.validateRanks(), w.Observe.validate(), w.KVCache.validate(), w.CUDAGraph.validate(), w.Scheduler.validate(), w.Transceiver.validate()))
}

func (k KVCache) validate() error {
	const at = "kv_cache_config."
	switch b := k.TokensPerBlock; {
	case b < 1 || b&(b-1) != 0 || b > 1024:
		return fmt.Errorf(at+"tokens_per_block: %d must be a power of two up to 1024", b)
	case k.MaxTokens < 0:
		return fmt.Errorf(at+"max_tokens: %d must not be negative; 0 derives it from memory", k.MaxTokens)
	case k.EventBuffer < 0 || k.EventBuffer > 1<<24:
		return fmt.Errorf(at+"event_buffer_max_size: %d must be 0 (no events) to 16777216", k.EventBuffer)
	case k.Type() == tensor.Invalid:
		return fmt.Errorf(at+"dtype: %q is not one of %s", k.DType, strings.Join(slices.Sorted(maps.Keys(kvTypes)), ", "))
	case !(k.MemoryFraction > 0 && k.MemoryFraction <= 1):
		return fmt.Errorf(at+"free_gpu_memory_fraction: %g must be above 0 and at most 1", k.MemoryFraction)
	case !executor.ReusePolicy(k.BlockReusePolicy).Valid():
		return fmt.Errorf(at+"block_reuse_policy: %q is not one of %s, %s, %s", k.BlockReusePolicy, executor.AllReusable, executor.PerRequest, executor.PerConversation)
	case k.MaxNumTurns < 1:
		return fmt.Errorf(at+"max_num_turns: %d must be at least 1", k.MaxNumTurns)
	case k.HostCacheSize < 0:
		return fmt.Errorf(at+"host_cache_size: %d must not be negative; 0 is no host tier", k.HostCacheSize)
	case k.DiskCacheSize < 0:
		return fmt.Errorf(at+"disk_cache_size: %d must not be negative", k.DiskCacheSize)
	case (k.DiskCacheDir == "") != (k.DiskCacheSize == 0):
		return errors.New(at + "disk_cache_dir: goes with disk_cache_size, the bytes that its files may take: give both or none")
	case k.DiskCacheDir != "" && k.HostCacheSize == 0:
		return errors.New(at + "disk_cache_dir: needs host_cache_size above 0: blocks go to the disk by way of the host")
	case k.OffloadMinPriority < 0 || k.OffloadMinPriority > 100:
		return fmt.Errorf(at+"offload_min_priority: %d must be 0 to 100", k.OffloadMinPriority)
	case strings.ContainsFunc(k.Namespace, func(r rune) bool { return r < ' ' }):
		return errors.New(at + "namespace: must not hold control characters")
	}
	return nil
}

func (s Scheduling) validate() error {
	const at = "scheduler_config."
	switch {
	case !scheduler.Policy(s.CapacityPolicy).Valid():
		return fmt.Errorf(at+"capacity_scheduler_policy: %q is not one of %s, %s, %s", s.CapacityPolicy,
			scheduler.GuaranteedNoEvict, scheduler.MaxUtilization, scheduler.StaticBatch)
	case !scheduler.Chunking(s.ChunkingPolicy).Valid():
		return fmt.Errorf(at+"context_chunking_policy: %q is not one of %s (FCFS), %s", s.ChunkingPolicy, scheduler.FirstCome, scheduler.EqualProgress)
	case !scheduler.Queue(s.QueuePolicy).Valid():
		return fmt.Errorf(at+"queue_policy: %q is not one of %s, %s", s.QueuePolicy, scheduler.FCFS, scheduler.Priority)
	case s.PrefillPerDecode < 0 || s.PrefillPerDecode > maxBatch:
		return fmt.Errorf(at+"prefill_tokens_per_decode: %d must be 0 (no limit) to %d", s.PrefillPerDecode, maxBatch)
	case s.MaxPrefillMixed < 0:
		return fmt.Errorf(at+"max_prefill_tokens_mixed: %d must not be negative", s.MaxPrefillMixed)
	case s.MaxQueued < 1:
		return fmt.Errorf(at+"max_queued_requests: %d must be at least 1", s.MaxQueued)
	case s.QueueTimeoutMsec < 0:
		return fmt.Errorf(at+"queue_timeout_ms: %d must not be negative; 0 is off", s.QueueTimeoutMsec)
	}
	return nil
}

func (t *Transceiver) validate() error {
	if t == nil {
		return nil
	}
	const at = "cache_transceiver_config."
	for _, f := range []struct {
		key string
		ms  int
	}{
		{"kv_transfer_timeout_ms", t.TransferTimeout},
		{"lease_ms", t.Lease},
		{"attach_ms", t.Attach},
		{"progress_ms", t.Progress},
		{"peer_wait_ms", t.PeerWait},
	} {
		if f.ms < 1 {
			return fmt.Errorf("%s%s: %d must be at least 1", at, f.key, f.ms)
		}
	}
	switch {
	case t.ControlPort < 0 || t.ControlPort > 65535:
		return fmt.Errorf(at+"control_port: %d is outside 0..65535", t.ControlPort)
	case t.DataPort < 0 || t.DataPort > 65535:
		return fmt.Errorf(at+"data_port: %d is outside 0..65535", t.DataPort)
	case strings.ContainsAny(t.AdvertiseHost, "/ []"):
		return fmt.Errorf(at+"advertise_host: %q must be a host name or an address without port and brackets", t.AdvertiseHost)
	case t.Backend != "DEFAULT" && t.Backend != "TCP":
		return fmt.Errorf(at+"backend: %q is unknown, use DEFAULT or TCP", t.Backend)
	case t.MaxConcurrentRecv < 1:
		return fmt.Errorf(at+"max_concurrent_recv: %d must be at least 1", t.MaxConcurrentRecv)
	case t.MaxInflightBytes < 1:
		return fmt.Errorf(at+"max_inflight_bytes: %d must be at least 1", t.MaxInflightBytes)
	case t.MaxLeasedFraction <= 0 || t.MaxLeasedFraction > 1:
		return fmt.Errorf(at+"max_leased_fraction: %g must be above 0 and at most 1", t.MaxLeasedFraction)
	}
	return nil
}

// first keeps one line of a joined error, since start-up errors are one line.
func first(err error) error {
	var list interface{ Unwrap() []error }
	if errors.As(err, &list) && len(list.Unwrap()) > 0 {
		return list.Unwrap()[0]
	}
	return err
}
