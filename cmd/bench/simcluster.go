package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"tandem/engine/adprouter"
	"tandem/engine/executor"
	"tandem/engine/transfer"
	"tandem/serve/conversation"
	"tandem/serve/router"
	"tandem/test/bench/des"
	"tandem/test/bench/profile"
)

// clusterFlags describe a simulated cluster.
type clusterFlags struct {
	shape, profile, genProfile   string
	router, genRouter, adpRouter string
	placement                    string
	rehome, subagents            bool
	frontends                    int
	blocks, block, maxBatch      int
	hostBlocks                   int
	hostBandwidth                float64
	maxTokens, genMaxBatch       int
	kvBytes                      int
	bandwidth                    float64
	hop, step                    time.Duration
}

func (f *clusterFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.shape, "cluster", "2xCTX-ADP4|1xGEN-ADP4", "instances: NxCTX, NxGEN or NxMIXED, with -ADPr of r ranks each; without GEN or MIXED, decoding is never the limit")
	fs.StringVar(&f.profile, "profile", "", "file of bench profile for ctx and mixed ranks, empty = the order of a large model on eight devices")
	fs.StringVar(&f.genProfile, "gen-profile", "", "the same for gen ranks, empty = --profile")
	fs.StringVar(&f.router, "router", router.KindConversation, "frontend's router for ctx and mixed instances: "+strings.Join(router.Kinds(), ", "))
	fs.StringVar(&f.genRouter, "gen-router", router.KindConversation, "the same for gen instances")
	fs.StringVar(&f.adpRouter, "adp-router", "conversation_aware", "router of ranks: conversation_aware, kv_cache_aware or default")
	fs.StringVar(&f.placement, "placement", string(adprouter.RoundRobin), "placement of new conversations on ranks")
	fs.BoolVar(&f.rehome, "rehome", true, "let conversations move between ranks")
	fs.BoolVar(&f.subagents, "subagents", true, "send sub-agents where their parents are")
	fs.IntVar(&f.frontends, "frontends", 1, "frontends; each conversation keeps its own")
	fs.IntVar(&f.blocks, "blocks", 20000, "KV blocks of a rank")
	fs.IntVar(&f.hostBlocks, "host-blocks", 0, "KV blocks of a rank's host tier")
	fs.Float64Var(&f.hostBandwidth, "host-bandwidth", 40, "GB/s between a rank and its host")
	fs.IntVar(&f.block, "tokens-per-block", 64, "tokens of a block")
	fs.IntVar(&f.maxBatch, "max-batch-size", 128, "requests of a step, of ctx and mixed ranks")
	fs.IntVar(&f.genMaxBatch, "gen-max-batch-size", 128, "requests of a step, of gen ranks")
	fs.IntVar(&f.maxTokens, "max-num-tokens", 2048, "rows of a step")
	fs.IntVar(&f.kvBytes, "kv-bytes", 70000, "bytes of K and V of one token")
	fs.Float64Var(&f.bandwidth, "bandwidth", 40, "GB/s out of an instance")
	fs.DurationVar(&f.hop, "hop", time.Millisecond, "time of a message between processes")
	fs.DurationVar(&f.step, "gen-step", 15*time.Millisecond, "without gen instances: time between two tokens")
}

// role is one part of a shape.
type role struct {
	kind             executor.Role
	instances, ranks int
}

// roles reads the shape.
func (f *clusterFlags) roles() (out []role, err error) {
	kinds := map[string]executor.Role{"CTX": executor.Ctx, "GEN": executor.Gen, "MIXED": executor.Mixed}
	for part := range strings.SplitSeq(f.shape, "|") {
		count, name, ok := strings.Cut(strings.ToUpper(strings.TrimSpace(part)), "X")
		name, ranks, adp := strings.Cut(name, "-ADP")
		r := role{kind: kinds[name], ranks: 1}
		var bad [2]error
		r.instances, bad[0] = strconv.Atoi(count)
		if adp {
			r.ranks, bad[1] = strconv.Atoi(ranks)
		}
		if !ok || r.kind == "" || bad[0] != nil || bad[1] != nil || r.instances < 1 || r.ranks < 1 || r.instances*r.ranks > 100_000 {
			return nil, fmt.Errorf("--cluster %q: want parts like 4xCTX-ADP8, 1xGEN-ADP8 or 3xMIXED, joined by |", f.shape)
		}
		out = append(out, r)
	}
	if len(out) > 2 || len(out) == 2 && (out[0].kind != executor.Ctx || out[1].kind != executor.Gen) || len(out) == 1 && out[0].kind == executor.Gen {
		return nil, fmt.Errorf("--cluster %q: want CTX, CTX|GEN or MIXED", f.shape)
	}
	return out, nil
}

// devices counts a rank as one.
func (f *clusterFlags) devices() (n int) {
	roles, _ := f.roles()
	for _, r := range roles {
		n += r.instances * r.ranks
	}
	return n
}

// named is the profile with its residual, for result files.
func (f *clusterFlags) named() string {
	p, err := readProfile(f.profile)
	if err != nil || f.profile == "" {
		return "built in, not measured"
	}
	return fmt.Sprintf("%s on %s, residual p95 %.1f %%", p.Model, p.Device, 100*p.Fit.ResidualP95)
}

// readProfile reads a file, or gives the built-in profile.
func readProfile(path string) (*profile.Profile, error) {
	if path == "" {
		return &profile.Profile{Coefficients: profile.Coefficients{Iteration: 0.02, CtxToken: 0.0001, GenRequest: 0.0001, GenContext: 2e-9}}, nil
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	p, err := profile.Read(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

// config is the cluster without load.
func (f *clusterFlags) config(seed uint64) (cfg des.Config, err error) {
	roles, err := f.roles()
	if err != nil {
		return cfg, err
	}
	if err := f.check(roles); err != nil {
		return cfg, err
	}
	cfg = des.Config{
		Seed: seed, Frontends: f.frontends, Retries: 1, Ideal: des.Ideal{Step: f.step},
		Net: des.Net{
			Hop: f.hop, Setup: time.Millisecond, Bandwidth: 1e9 * f.bandwidth, MaxSends: 64,
			RankSetup: time.Millisecond, RankBand: 3e9 * f.bandwidth, HostBand: 1e9 * f.hostBandwidth,
		},
	}
	if f.subagents {
		cfg.Rules = conversation.Rules{ParentHeader: "X-Parent-Session-ID"}
	}
	for i, r := range roles {
		kind, path, batch := f.router, f.profile, f.maxBatch
		if i > 0 {
			kind, path, batch = f.genRouter, cmp.Or(f.genProfile, f.profile), f.genMaxBatch
		}
		g, err := f.group(r, kind, path, batch)
		if err != nil {
			return cfg, err
		}
		if i == 0 {
			cfg.Ctx = g
		} else {
			cfg.Gen = g
		}
	}
	return cfg, nil
}

// mostBlocks bounds the blocks of all ranks, whose books take 300 bytes each.
const mostBlocks = 50_000_000

// check names the flag of what the simulator would refuse by another name, or not survive.
func (f *clusterFlags) check(roles []role) error {
	ranks := 0
	for _, r := range roles {
		ranks += r.instances * r.ranks
	}
	for _, c := range []struct {
		wrong bool
		text  string
	}{
		{f.blocks < 1 || f.hostBlocks < 0, fmt.Sprintf("--blocks %d and --host-blocks %d: want 1 and 0 at least", f.blocks, f.hostBlocks)},
		{max(f.blocks, f.hostBlocks) > mostBlocks/ranks, fmt.Sprintf("--blocks %d and --host-blocks %d of %d ranks: want %d of all ranks at most, which take 15 GB", f.blocks, f.hostBlocks, ranks, mostBlocks)},
		{f.block < 1 || f.block > 1<<20 || f.block&(f.block-1) != 0, fmt.Sprintf("--tokens-per-block %d: want a power of two, %d at most", f.block, 1<<20)},
		{f.maxBatch < 1 || f.genMaxBatch < 0, fmt.Sprintf("--max-batch-size %d and --gen-max-batch-size %d: want 1 at least", f.maxBatch, f.genMaxBatch)},
		{f.maxTokens <= f.block, fmt.Sprintf("--max-num-tokens %d: want more than the %d of a block", f.maxTokens, f.block)},
		{f.kvBytes < 4 || f.kvBytes > 1<<30, fmt.Sprintf("--kv-bytes %d: want 4 to %d", f.kvBytes, 1<<30)},
		{!(f.bandwidth >= 1e-6 && f.bandwidth <= 1e6), fmt.Sprintf("--bandwidth %g: want GB/s, 1e-6 to 1e6", f.bandwidth)},
		{f.hostBlocks > 0 && !(f.hostBandwidth >= 1e-6 && f.hostBandwidth <= 1e6), fmt.Sprintf("--host-bandwidth %g: want GB/s, 1e-6 to 1e6", f.hostBandwidth)},
		{f.hop < 0 || f.step < 0, fmt.Sprintf("--hop %v and --gen-step %v must not be negative", f.hop, f.step)},
		{f.frontends < 1 || f.frontends > 100_000, fmt.Sprintf("--frontends %d: want 1 to 100000", f.frontends)},
	} {
		if c.wrong {
			return errors.New(c.text)
		}
	}
	for i, kind := range []string{f.router, f.genRouter}[:len(roles)] {
		if err := (router.Config{Type: kind}).Validate(); err != nil {
			return fmt.Errorf("%s: %w", [2]string{"--router", "--gen-router"}[i], err)
		}
	}
	adp := adprouter.DefaultSettings()
	if adp.Placement = f.placement; adp.Validate() != nil {
		return fmt.Errorf("--placement: %w", adp.Validate())
	}
	return nil
}

func (f *clusterFlags) group(r role, kind, path string, batch int) (des.Group, error) {
	p, err := readProfile(path)
	if err != nil {
		return des.Group{}, err
	}
	core := des.Core(r.kind, kind)
	core.BlockTokens, core.Blocks, core.MaxBatch, core.MaxNumTokens, core.MaxSeqLen, core.MaxQueued = f.block, f.blocks, batch, f.maxTokens, f.blocks*f.block, 1<<20
	core.Tiers.HostBlocks = f.hostBlocks
	core.MaxInflightBytes = 64 << 30 // prompts of large models have gigabytes
	core.Layout = transfer.Layout{Layers: 1, KVHeads: 1, HeadDim: max(1, f.kvBytes/4), DType: "F16", BlockTokens: f.block}
	adp := adprouter.DefaultSettings()
	adp.Placement, adp.Rehome = f.placement, f.rehome
	switch f.adpRouter {
	case string(adprouter.ConversationAware):
		adp.Conversations = true
	case string(adprouter.KVCacheAware):
		adp.KVCacheAware = true
	case string(adprouter.Default):
	default:
		return des.Group{}, fmt.Errorf("--adp-router %q: want conversation_aware, kv_cache_aware or default", f.adpRouter)
	}
	return des.Group{
		Instances: r.instances, Ranks: r.ranks, Core: core, ADP: adp, Router: router.Config{Type: kind},
		Cost: p.Coefficients, Collective: time.Millisecond,
	}, nil
}
