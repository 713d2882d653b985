package runner

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"time"

	"tandem/engine/comm"
)

// joinTime is how long ranks of other processes may take to load and come, and
// joinWord how often their absence is mentioned.
const (
	joinTime = 10 * time.Minute
	joinWord = 10 * time.Second
)

// connect makes the group, waiting for ranks of other processes.
func connect(ctx context.Context, addr string, ranks comm.Span, c comm.Config, log *slog.Logger) (*comm.Group, error) {
	if addr == "" {
		return comm.NewLocal(c)
	}
	if c.JoinTimeout == 0 {
		c.JoinTimeout = joinTime
	}
	w := &joinWatch{log: log, start: time.Now(), limit: c.JoinTimeout, ours: ranks.String(), addr: addr}
	c.OnJoin = w.news
	done := make(chan struct{})
	defer close(done)
	go w.remind(done)
	if ranks.First > 0 {
		return comm.Join(ctx, addr, ranks, c)
	}
	l, err := comm.Listen(addr, ranks, c)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("--rank-group %s: %w (does another process of rank 0 run? choose another port, the same in all processes)", addr, err)
	case err != nil:
		return nil, fmt.Errorf("--rank-group %s: %w (rank 0's process listens there: it must be an address of this host)", addr, err)
	}
	return l.Accept(ctx)
}

// joinWatch tells the log how far a group is.
type joinWatch struct {
	log        *slog.Logger
	start      time.Time
	limit      time.Duration
	ours, addr string

	mu      sync.Mutex
	missing []int // nil: not known here
}

// news is about ranks that came, went or were refused.
func (w *joinWatch) news(j comm.Joining) {
	w.mu.Lock()
	w.missing = j.Missing
	w.mu.Unlock()
	if j.Refused != "" {
		w.log.Warn("a process with ranks was not taken in", "why", j.Refused, "missing", j.Missing)
	} else {
		w.log.Info("ranks have joined or gone", "missing", j.Missing)
	}
}

func (w *joinWatch) remind(done <-chan struct{}) {
	tick := time.NewTicker(joinWord)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			w.mu.Lock()
			missing := any(w.missing)
			if w.missing == nil {
				missing = "unknown here"
			}
			w.mu.Unlock()
			w.log.Info("waiting for the ranks of other processes", "ours", w.ours, "missing", missing, "rank_group", w.addr,
				"waited", time.Since(w.start).Round(time.Second), "limit", w.limit)
		case <-done:
			return
		}
	}
}

// settings lists what must be equal in all processes of an instance, as lines of
// key=value with the names that users know.
func (o *LoadOptions) settings(cfg Config) string {
	lines := []string{
		"model=" + cfg.Info.Model + " " + cfg.Info.Fingerprint,
		fmt.Sprintf("tensor_parallel_size=%d", o.Ranks), fmt.Sprintf("enable_attention_dp=%t", o.AttentionDP),
		fmt.Sprintf("attention_dp_config.dense_mlp=%s", map[bool]string{true: "split", false: "local"}[o.SplitMLP]),
		fmt.Sprintf("activations=%s", o.acts),
	}
	c := cfg.Core
	c.Incarnation, c.Endpoint, c.Blocks, c.Rank = "", "", 0, 0 // of each process
	c.Tiers.HostBlocks, c.Tiers.DiskBlocks = 0, 0
	lines = append(lines, fields("", reflect.ValueOf(c), "")...)
	if o.AttentionDP {
		lines = append(lines, fields("attention_dp_config.", reflect.ValueOf(o.ADP), "mapstructure")...)
	}
	return strings.Join(lines, "\n")
}

// fields lists the members of a struct by the name in tag, or a known one.
func fields(prefix string, v reflect.Value, tag string) (lines []string) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if k := f.Type.Kind(); k == reflect.Func || k == reflect.Pointer || k == reflect.Chan {
			continue // of this process
		}
		name := f.Name
		if t := f.Tag.Get(tag); tag != "" && t != "" {
			name = t
		} else if known := coreKeys[f.Name]; known != "" {
			name = known
		}
		value := strings.ReplaceAll(fmt.Sprintf("%+v", v.Field(i).Interface()), "\n", " ")
		lines = append(lines, prefix+name+"="+value)
	}
	return lines
}

// coreKeys are the users' names of members of executor.Config.
var coreKeys = map[string]string{
	"Role": "--role", "MaxBatch": "max_batch_size", "MaxNumTokens": "max_num_tokens",
	"MaxSeqLen": "max_seq_len (which a small KV pool lowers)", "MaxQueued": "scheduler_config.max_queued_requests",
	"QueueTimeout": "scheduler_config.queue_timeout_ms", "Policy": "scheduler_config.capacity_scheduler_policy",
	"Chunking": "scheduler_config.context_chunking_policy", "Queue": "scheduler_config.queue_policy",
	"PrefillMixed": "scheduler_config.max_prefill_tokens_mixed", "PrefillPerDecode": "scheduler_config.prefill_tokens_per_decode",
	"ChunkPrefill": "enable_chunked_prefill",
	"BlockTokens":  "kv_cache_config.tokens_per_block", "BlockReuse": "kv_cache_config.enable_block_reuse",
	"PartialReuse": "kv_cache_config.enable_partial_reuse", "Namespace": "served_model_name or kv_cache_config.namespace",
	"Lease": "cache_transceiver_config.lease_ms", "Layout": "KV layout",
	"LocalRecompute":    "cache_transceiver_config.local_recompute",
	"MaxConcurrentRecv": "cache_transceiver_config.max_concurrent_recv", "MaxInflightBytes": "cache_transceiver_config.max_inflight_bytes",
	"MaxLeasedFraction": "cache_transceiver_config.max_leased_fraction", "RecvTotal": "cache_transceiver_config.kv_transfer_timeout_ms",
	"Attach": "cache_transceiver_config.attach_ms", "Progress": "cache_transceiver_config.progress_ms",
}

func epochOf(settings string) uint32 { return crc32.ChecksumIEEE([]byte(settings)) }
