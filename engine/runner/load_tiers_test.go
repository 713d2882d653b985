package runner

import (
	"fmt"
	"strings"
	"testing"

	"tandem/engine/comm"
	"tandem/engine/cpu"
	"tandem/engine/diskcache"
	"tandem/engine/executor"
	"tandem/engine/transfer"
)

func TestTierSizes(t *testing.T) {
	const block = 2048 // bytes
	for _, tc := range []struct {
		name       string
		o          LoadOptions
		host, disk int
		fails      string
	}{
		{"none", LoadOptions{}, 0, 0, ""},
		{"host", LoadOptions{Tiers: TierOptions{HostBytes: 10*block + 5}}, 10, 0, ""},
		{"less than a block", LoadOptions{Tiers: TierOptions{HostBytes: block - 1}}, 0, 0, "host_cache_size"},
		{"more than there is", LoadOptions{Tiers: TierOptions{HostBytes: 1 << 60}}, 0, 0, "this machine has"},
		{"disk", LoadOptions{Tiers: TierOptions{HostBytes: 10 * block, DiskDir: "d", DiskBytes: 1 << 20}}, 10, -1, ""},
		{"less than a file", LoadOptions{Tiers: TierOptions{HostBytes: 10 * block, DiskDir: "d", DiskBytes: block}}, 0, 0, "disk_cache_size"},
		{"ranks of one request elsewhere", LoadOptions{Ranks: 4, Tiers: TierOptions{HostBytes: 10 * block}}, 0, 0, "--rank-group"},
		{"ranks of their own elsewhere", LoadOptions{Ranks: 4, AttentionDP: true, Tiers: TierOptions{HostBytes: 10 * block}}, 10, 0, ""},
	} {
		core := executor.DefaultConfig()
		core.Layout = transfer.Layout{Layers: 1, KVHeads: 1, HeadDim: 16, DType: "F32", BlockTokens: 16}
		cfg, err := tc.o.tiers(&core, "model", "cpu avx512, 2 threads", comm.Span{First: 0, Last: 1})
		if tc.o.Ranks == 0 {
			cfg, err = tc.o.tiers(&core, "model", "cpu avx512, 2 threads", comm.Span{})
		}
		if tc.fails != "" {
			if err == nil || !strings.Contains(err.Error(), tc.fails) {
				t.Errorf("%s: %v", tc.name, err)
			}
			continue
		}
		if tc.disk < 0 {
			tc.disk = 1 << 20 / int(diskcache.FileBytes(cfg.Identity, block))
		}
		if err != nil || core.Tiers.HostBlocks != tc.host || core.Tiers.DiskBlocks != tc.disk {
			t.Errorf("%s: %+v, %v", tc.name, core.Tiers, err)
		}
		if form := fmt.Sprintf("; cpu avx512 %d;", cpu.WeightForm); tc.host > 0 && !strings.Contains(cfg.Identity, form) {
			t.Errorf("files of other arithmetic are taken: %s", cfg.Identity)
		}
		if strings.Contains(cfg.Identity, "threads") {
			t.Errorf("files depend on the number of threads: %s", cfg.Identity)
		}
	}
	core := executor.DefaultConfig()
	core.BlockReuse = false
	o := LoadOptions{Tiers: TierOptions{HostBytes: 1}}
	if _, err := o.tiers(&core, "", "", comm.Span{}); err != nil || core.Tiers.HostBlocks != 0 {
		t.Errorf("without reuse: %+v, %v", core.Tiers, err)
	}
}
