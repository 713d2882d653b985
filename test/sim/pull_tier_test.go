package sim

import (
	"testing"

	"tandem/engine/executor"
	"tandem/engine/kvcache"
)

// A gen worker brings what it has of a prompt from the tiers below its pool, and pulls
// the rest only.
func TestPullTakesWhatTheTiersHave(t *testing.T) {
	for _, disk := range []int{0, 64} {
		c := pair(t, func(_, gen *executor.Config) {
			gen.Blocks, gen.OnboardAlways = 24, true
			gen.Tiers = kvcache.Tiers{HostBlocks: 32, DiskBlocks: disk, MinPriority: 30}
			if disk > 0 {
				gen.Tiers.HostBlocks = 8
			}
		})
		long := prompt(3, 164)
		c.Start(session(0, long[:144], 4)) // 9 whole blocks
		settle(t, c)
		c.Start(session(1, prompt(4, 300), 8)) // pushes out most of them
		settle(t, c)
		before, st := c.Moved, c.Gen.Core.Stats()
		c.Start(session(2, long, 8))
		settle(t, c)
		verifySessions(t, c)
		now := c.Gen.Core.Stats()
		if now.OnboardBytes+now.LoadBytes == st.OnboardBytes+st.LoadBytes {
			t.Error("nothing came from a tier")
		}
		expect(t, "blocks moved", c.Moved-before, 2)
		expect(t, "cached on gen", c.Sessions[2].Gen.Usage.CachedTokens, 144)
	}
}
