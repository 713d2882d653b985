package des

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"tandem/engine/adprouter"
	"tandem/engine/executor"
	"tandem/serve/conversation"
	"tandem/serve/router"
	"tandem/test/bench/profile"
	"tandem/test/bench/schedule"
	"tandem/test/bench/workload"
)

// Config is a cluster, what its clients do, and what is measured.
type Config struct {
	Seed      uint64
	Ctx       Group // also the mixed workers of a cluster that is not divided
	Gen       Group // Instances 0: Ideal decodes
	Ideal     Ideal
	Net       Net
	Frontends int  // at least 1
	Scatter   bool // requests go to frontends in turn; else a conversation keeps its own
	Rules     conversation.Rules
	// ShareHomes lets frontends tell each other, one hop later, where conversations
	// live, as those do that have a common map.
	ShareHomes bool
	Workload   *workload.Workload
	Load       schedule.Options
	Warmup     time.Duration // at the beginning, not measured
	// Heat is the part of Warmup in which devices are a hundred times as fast, to
	// fill caches. Requests name ranks in turn then, so that no placement gets a
	// start of its own from queues that are empty.
	Heat    time.Duration
	Measure time.Duration // after it
	Faults  []Fault
	NoIDs   bool // clients send no conversation ids
	// ForceRank is a wrapper around the worker that names a rank of its own for
	// every request, in turn, as a hint.
	ForceRank bool
	// RankRouter is a wrapper too, if it has a type: its router chooses among the ranks of the instance
	// that the frontend chose, by what each has cached and has to do, and names that rank as a hint.
	RankRouter router.Config
	HideIDs    bool // frontends place by conversation, but workers get no ids
	Retries    int  // of a leg that fails, on another instance

	relabel []int // other names of the ranks that ForceRank names
}

// Group is the instances of one role.
type Group struct {
	Instances  int
	Ranks      int // of each, in lockstep if more than one
	Core       executor.Config
	ADP        adprouter.Settings
	Router     router.Config // of the frontends
	Cost       profile.Coefficients
	Collective time.Duration // of each iteration, above the slowest rank
	Lockstep   bool          // of a single rank too, which else runs alone
	// Pace is a factor on the time of a pass of some instance, asked once for each; nil = 1. It must be a function of how
	// often it was asked what.
	Pace func(instance int, p profile.Point) float64
}

// Core is the configuration of an engine's core behind a router of a kind, without what is not modelled. It lacks sizes and layout.
func Core(role executor.Role, kind string) executor.Config {
	c := executor.DefaultConfig()
	c.Role, c.Namespace, c.Vocab = role, "simulated", Vocab
	c.PartialReuse = false
	if kind != router.KindKVAware && kind != router.KindHybrid { // nobody asks what is cached
		c.EventBuffer = 0
	}
	return c
}

// Ideal stands for gen workers that are never the limit.
type Ideal struct {
	Step time.Duration // between two tokens of a request
}

// Net is what messages and blocks cost.
type Net struct {
	Hop       time.Duration // of a message between two processes
	Setup     time.Duration // of a hand-over
	Bandwidth float64       // bytes/s out of an instance, shared by its hand-overs
	MaxSends  int           // hand-overs of an instance at a time, 0 = any number
	RankSetup time.Duration // of a copy between ranks
	RankBand  float64       // bytes/s out of a rank to others of its instance
	HostBand  float64       // bytes/s between a rank and its host, for ranks with a host tier
	// Layers > 0: blocks leave layer by layer while the prompt is computed, so
	// that only what is left is waited for; each layer costs LayerSetup.
	Layers     int
	LayerSetup time.Duration
}

// FaultKind names what goes wrong.
type FaultKind string

// The faults.
const (
	Kill     FaultKind = "kill"      // an instance ends, and comes back empty after For, if that is not 0
	SlowRank FaultKind = "slow_rank" // iterations of one rank take Factor times as long
	SlowLink FaultKind = "slow_link" // an instance sends at Factor of its bandwidth
	LostDone FaultKind = "lost_done" // the ends of hand-overs from an instance are not heard
)

// Fault is something that goes wrong at a time.
type Fault struct {
	Kind     FaultKind
	Gen      bool // of the gen instances, else ctx
	Instance int
	Rank     int
	At, For  time.Duration
	Factor   float64
}

// Validate reports the first thing that cannot be simulated, by its name.
func (c *Config) Validate() error {
	switch {
	case c.Ctx.Instances < 1:
		return errors.New("ctx: at least one instance is needed")
	case c.Frontends < 1:
		return errors.New("frontends: at least 1 is needed")
	case c.Workload == nil:
		return errors.New("workload: there is none")
	case c.Measure <= 0:
		return errors.New("duration: must be positive")
	case c.Warmup < 0 || c.Heat < 0 || c.Heat > c.Warmup:
		return errors.New("warm-up: must not be negative, nor its heat longer")
	case c.Warmup > longest || c.Measure > longest:
		return fmt.Errorf("duration and warm-up: must be %v at most", longest)
	case !band(c.Net.Bandwidth) || !band(c.Net.RankBand):
		return fmt.Errorf("net: bandwidths must be %g to %g bytes a second", leastBand, mostBand)
	case slices.ContainsFunc([]time.Duration{c.Net.Hop, c.Net.Setup, c.Net.RankSetup, c.Net.LayerSetup}, func(d time.Duration) bool { return d < 0 || d > longest }):
		return errors.New("net: times of hops and set-ups must not be negative")
	case c.Gen.Instances == 0 && c.Ctx.Core.Role == executor.Ctx && c.Ideal.Step <= 0:
		return errors.New("ideal: the step of an unlimited gen worker must be positive")
	}
	for _, g := range []*Group{&c.Ctx, &c.Gen} {
		if g.Core.Tiers.HostBlocks > 0 && !band(c.Net.HostBand) {
			return fmt.Errorf("net: the bandwidth of hosts must be %g to %g bytes a second", leastBand, mostBand)
		}
		if g.Core.Tiers.DiskBlocks > 0 {
			return errors.New("tiers: disks are not simulated")
		}
	}
	if err := c.Ctx.validate(); err != nil {
		return fmt.Errorf("ctx: %w", err)
	}
	if err := c.RankRouter.Validate(); c.RankRouter.Type != "" && err != nil {
		return fmt.Errorf("rank router: %w", err)
	}
	if c.Gen.Instances > 0 {
		if err := c.Gen.validate(); err != nil {
			return fmt.Errorf("gen: %w", err)
		}
	}
	for i, f := range c.Faults {
		g := &c.Ctx
		if f.Gen {
			g = &c.Gen
		}
		if f.Instance < 0 || f.Instance >= g.Instances || f.Rank < 0 || f.Rank >= g.Ranks {
			return fmt.Errorf("fault %d: there is no instance %d with a rank %d", i, f.Instance, f.Rank)
		}
		if slow := f.Kind == SlowRank || f.Kind == SlowLink; f.At < 0 || f.For < 0 || slow && !(f.Factor > 0 && f.Factor <= 1e6) {
			return fmt.Errorf("fault %d: %s at %v for %v by %g: times must not be negative, and a factor is 0 to 1e6", i, f.Kind, f.At, f.For, f.Factor)
		}
	}
	return nil
}

// Bounds of what is simulated: beyond them times are no whole nanoseconds, or longer than the clock counts.
const (
	leastBand, mostBand = 1e3, 1e18
	longest             = 365 * 24 * time.Hour
)

func band(bytesPerSecond float64) bool {
	return bytesPerSecond >= leastBand && bytesPerSecond <= mostBand
}

func (g *Group) validate() error {
	if g.Ranks < 1 {
		return errors.New("ranks: at least 1 is needed")
	}
	if err := g.Core.Validate(); err != nil {
		return err
	}
	if err := g.ADP.Validate(); err != nil {
		return err
	}
	return g.Router.Validate()
}

// open reports whether requests come whatever becomes of others.
func (c *Config) open() bool {
	return c.Load.Mode == schedule.Rate || c.Load.Mode == schedule.Constant || c.Load.Mode == schedule.Fixed
}

// limit is the most active requests of a rank, as the runner sets it.
func (g *Group) limit() int {
	n := g.Core.EffectiveBatch()
	if g.Core.Role == executor.Gen {
		n += g.Core.MaxConcurrentRecv
	}
	return n
}
