package runner

import (
	"fmt"
	"strings"

	"tandem/engine/comm"
	"tandem/engine/cpu"
	"tandem/engine/diskcache"
	"tandem/engine/executor"
)

// TierOptions sizes what is below the KV pool of each rank that has requests of
// its own; ranks that share each request have one host and one disk tier together.
type TierOptions struct {
	HostBytes int64
	DiskDir   string // empty = no files
	DiskBytes int64
}

// maxFiles bounds the books of a disk tier.
const maxFiles = 1 << 21

// tiers turns sizes into blocks, and says what the files depend on.
func (o *LoadOptions) tiers(core *executor.Config, fingerprint, backend string, ranks comm.Span) (TierConfig, error) {
	t := &o.Tiers
	core.Tiers.HostBlocks, core.Tiers.DiskBlocks = 0, 0
	if t.HostBytes == 0 || !core.BlockReuse {
		return TierConfig{}, nil
	}
	size := int64(core.Layout.BlockBytes())
	own := 1 // ranks here that have tiers of their own
	if o.AttentionDP {
		own = ranks.Len()
	} else if ranks.Len() < max(o.Ranks, 1) {
		return TierConfig{}, fmt.Errorf("kv_cache_config.host_cache_size: ranks that share each request must be in one process for this: leave --rank-group out, or set enable_attention_dp")
	}
	const gib = 1 << 30
	switch most := totalMemory(); {
	case t.HostBytes < size:
		return TierConfig{}, fmt.Errorf("kv_cache_config.host_cache_size: %d bytes hold no block of %d", t.HostBytes, size)
	case most > 0 && t.HostBytes > most/int64(own):
		return TierConfig{}, fmt.Errorf("kv_cache_config.host_cache_size: %.1f GiB for each of %d ranks, and this machine has %.1f: lower it",
			float64(t.HostBytes)/gib, own, float64(most)/gib)
	}
	core.Tiers.HostBlocks = int(t.HostBytes / size)
	arithmetic, _, _ := strings.Cut(backend, ",") // the rest is threads and the like, which change no bits
	cfg := TierConfig{Dir: t.DiskDir, Identity: fmt.Sprintf("%s; %s %d; f32 %t; %+v", fingerprint, arithmetic, cpu.WeightForm, o.F32, core.Layout)}
	if o.acts == cpu.Activations8 {
		cfg.Identity += "; activations of 8 bits"
	}
	if t.DiskDir == "" {
		return cfg, nil
	}
	file := diskcache.FileBytes(cfg.Identity, int(size))
	if t.DiskBytes < file {
		return TierConfig{}, fmt.Errorf("kv_cache_config.disk_cache_size: %d bytes hold no file of %d", t.DiskBytes, file)
	}
	core.Tiers.DiskBlocks = int(min(t.DiskBytes/file, maxFiles))
	return cfg, nil
}
