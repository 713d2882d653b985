package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"tandem/serve/router"
	"tandem/test/bench/reroute"
)

// recorded is the value of --routes for the routers of the trace.
const recorded = "recorded"

// reroute asks routers again what they decided.
func (f *replayFlags) reroute(out io.Writer, args []string) error {
	parts, shut, err := openParts(args)
	defer shut()
	if err != nil {
		return err
	}
	kind := f.routes
	if kind == recorded {
		kind = ""
	} else if err := (router.Config{Type: kind}).Validate(); err != nil {
		return fmt.Errorf("--routes: %w", err)
	}
	res, err := reroute.Replay(parts, kind)
	if err != nil {
		return err
	}
	if res.Missing > 0 {
		_, _ = fmt.Fprintf(out, "%d decisions are not in the trace, since the disk was too slow or files were deleted: later ones may differ\n", res.Missing)
	}
	same := true
	for _, leg := range []struct {
		name string
		*reroute.Leg
	}{{"ctx", &res.Ctx}, {"gen", &res.Gen}} {
		if leg.Decisions == 0 {
			continue
		}
		same = same && leg.Same == leg.Decisions
		_, _ = fmt.Fprintf(out, "%s, %s: %d of %d decisions are the same, %d for the same reason\n", leg.name, leg.Router, leg.Same, leg.Decisions, leg.Reasons)
		for _, id := range slices.Sorted(maps.Keys(leg.Then)) {
			_, _ = fmt.Fprintf(out, "  %s: %d then, %d now\n", id, leg.Then[id], leg.Now[id])
		}
		if leg.First != "" {
			_, _ = fmt.Fprintf(out, "  the first that differs: %s\n", leg.First)
		}
	}
	if kind == "" && !same {
		return errors.New("the routers did not decide the same again: they are configured otherwise here, or went by what workers tell of their caches and load")
	}
	return nil
}
