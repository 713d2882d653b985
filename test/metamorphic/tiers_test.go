package metamorphic

import (
	"testing"

	"tandem/engine/adprouter"
	"tandem/engine/runner"
	"tandem/engine/tensor"
	"tandem/test/tinymodel"
)

// below puts tiers below a device that has room for a few requests only.
func below(hostBlocks int, disk string) func(*runner.LoadOptions, load) {
	return func(o *runner.LoadOptions, l load) {
		reuse(o, l)
		o.PoolTokens, o.Core.MaxSeqLen, o.Core.OnboardAlways = l.tight, l.tight, true
		o.Core.Tiers.MinPriority = 30
		o.Tiers = runner.TierOptions{HostBytes: int64(hostBlocks) * blockBytes(o), DiskDir: disk}
		if disk != "" {
			o.Tiers.DiskBytes = 1 << 30
		}
	}
}

// blockBytes is the size of a block of the tiny model.
func blockBytes(o *runner.LoadOptions) int64 {
	const perToken = 2 * 2 * 2 * 16 // keys and values of two layers with two heads
	switch o.KVDType {
	case tensor.F32:
		return int64(o.Core.BlockTokens * perToken * 4)
	case tensor.I8: // with scales of two bytes for heads of 16
		return int64(o.Core.BlockTokens * perToken * 18 / 16)
	}
	return int64(o.Core.BlockTokens * perToken * 2)
}

func onboards(st runner.Stats) bool { return st.OnboardBytes > 0 && st.TierFailed == 0 }
func loads(st runner.Stats) bool    { return st.LoadBytes > 0 && st.SpillBytes > 0 && st.TierFailed == 0 }
func restores(st runner.Stats) bool { return st.LoadBytes > 0 && st.BadFiles == 0 }

// TestTiersGiveTheSame forces content out of the device and back: by the host, by
// files, and by files of an engine that has ended.
func TestTiersGiveTheSame(t *testing.T) {
	dir := t.TempDir()
	if err := tinymodel.WriteServable(dir, 7); err != nil {
		t.Fatal(err)
	}
	l := load{requests: 16, tokens: 20, prompt: 150, pool: 8192, tight: 320, vocab: 512}
	for _, dtype := range []tensor.DType{tensor.BF16, tensor.F32, tensor.I8} {
		t.Run(dtype.String(), func(t *testing.T) {
			disk := t.TempDir()
			list := []variant{
				{name: "alone", alone: true},
				{name: "host", change: below(400, ""), twice: true, happened: onboards},
				{name: "host, overlap, chunks of 16, pauses", change: all(below(400, ""), chunk(16), squeeze, overlap), twice: true, happened: onboards},
				{name: "host, split", change: below(400, ""), split: true, twice: true, happened: onboards},
				{name: "host, blocks of 8", change: all(block(8), below(800, "")), twice: true, happened: onboards},
				{name: "split, blocks of 32 from 8", change: blocks(8, 32), split: true, twice: true},
				{name: "split, blocks of 8 from 16", change: blocks(16, 8), split: true, twice: true},
				{name: "disk", change: below(12, disk), twice: true, happened: loads},
				{name: "disk of before", change: below(12, disk), alone: true, happened: restores},
			}
			for i := range list {
				change := list[i].change
				list[i].change = func(o *runner.LoadOptions, l load) {
					o.KVDType = dtype
					if change != nil {
						change(o, l)
					}
				}
			}
			compare(t, dir, l, list)
		})
	}
}

// TestRanksHaveTiers does it with ranks that share each request, whose tiers hold
// whole blocks, and with ranks of their own.
func TestRanksHaveTiers(t *testing.T) {
	dir := t.TempDir()
	if err := tinymodel.WriteServable(dir, 7); err != nil {
		t.Fatal(err)
	}
	l := load{requests: 16, tokens: 10, prompt: 150, pool: 8192, tight: 320, vocab: 512}
	for _, dp := range []bool{false, true} { // which rank gets what differs from run to run
		two := func(o *runner.LoadOptions, _ load) {
			o.Ranks, o.AttentionDP, o.ADP = 2, dp, adprouter.DefaultSettings()
		}
		disk := t.TempDir()
		list := []variant{
			{name: "alone", change: two, alone: true},
			{name: "host", change: all(two, below(400, "")), twice: true, happened: onboards},
			{name: "host, blocks of 8", change: all(two, block(8), below(800, "")), twice: true, happened: onboards},
			{name: "split, blocks of 8 from 32", change: all(two, blocks(32, 8)), split: true},
			{name: "disk", change: all(two, below(12, disk)), twice: true},
			{name: "disk of before", change: all(two, below(12, disk)), alone: true, happened: restores},
		}
		t.Run(map[bool]string{false: "tensor parallel", true: "attention DP"}[dp], func(t *testing.T) { compare(t, dir, l, list) })
	}
}
