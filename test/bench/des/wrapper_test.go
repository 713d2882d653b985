package des

import (
	"testing"
	"time"

	"tandem/serve/router"
)

// A wrapper whose router knows what ranks have cached finds more again than one
// that names ranks in turn, and less than conversations that stay.
func TestWrapperNamesTheRankThatHasThePrompt(t *testing.T) {
	reuse := map[string]float64{}
	for name, set := range map[string]func(*Config){
		"in turn": func(c *Config) { c.ForceRank, c.HideIDs = true, true },
		"router": func(c *Config) {
			c.RankRouter, c.HideIDs, c.Ctx.Core.EventBuffer = router.Config{Type: router.KindKVAware}, true, 4096
		},
		"stay": func(*Config) {},
	} {
		cfg := brief(4, 30)
		set(&cfg)
		_, r := run(t, cfg)
		reuse[name] = r.Reuse()
		if why := r.Reasons()["explicit"]; (name == "stay") != (why == 0) || len(r.Good()) < 100 {
			t.Errorf("%s: %d requests, %v", name, len(r.Good()), r.Reasons())
		}
	}
	if !(reuse["in turn"]+0.1 < reuse["router"] && reuse["router"] <= reuse["stay"]+0.02) {
		t.Error(reuse)
	}
}

// Ranks that a wrapper chose are forgotten with their instance, and it goes on.
func TestWrapperLivesThroughAKill(t *testing.T) {
	cfg := brief(5, 20)
	cfg.RankRouter, cfg.Ctx.Core.EventBuffer = router.Config{Type: router.KindKVAware}, 4096
	cfg.Faults = []Fault{{Kind: Kill, Instance: 1, At: 500 * time.Millisecond, For: 200 * time.Millisecond}}
	_, r := run(t, cfg)
	late := 0
	for _, rec := range r.Good() {
		if rec.Ctx == 1 && rec.Send > 700*time.Millisecond {
			late++
		}
	}
	if late == 0 || r.Leaked > 0 {
		t.Errorf("%d requests on the instance that came back, %d blocks lost", late, r.Leaked)
	}
}
