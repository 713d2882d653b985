package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/pflag"

	"tandem/engine/hub"
	"tandem/test/bench/cluster"
	"tandem/test/bench/load"
)

// localFlags describe workers that a command starts on this machine.
type localFlags struct {
	workers, threads int
	wait             time.Duration
}

func (f *localFlags) add(fs *pflag.FlagSet, workers int) {
	fs.IntVar(&f.workers, "workers", workers, "mixed workers to start")
	fs.IntVar(&f.threads, "threads", 1, "compute threads of each worker")
	fs.DurationVar(&f.wait, "start-timeout", 3*time.Minute, "how long a program may take to start")
}

// start starts the workers of a model, with more keys in their configuration. It returns the model's path, too.
func (f *localFlags) start(ctx context.Context, args []string, keys map[string]any, log io.Writer) (*cluster.Cluster, string, error) {
	name := hub.DefaultModel
	if len(args) > 0 {
		name = args[0]
	}
	if f.workers < 1 || f.threads < 1 {
		return nil, "", fmt.Errorf("--workers %d and --threads %d must be at least 1", f.workers, f.threads)
	}
	path, err := hub.Locate(name)
	if err != nil {
		return nil, "", err
	}
	bin, err := programs()
	if err != nil {
		return nil, "", err
	}
	_, _ = fmt.Fprintf(log, "starting %d workers with %s\n", f.workers, name)
	c, err := cluster.Up(ctx, cluster.Options{Bin: bin, Model: path, Workers: f.workers, Threads: f.threads, Keys: keys, Wait: f.wait})
	if err != nil {
		c.Down()
		return nil, "", err
	}
	return c, path, nil
}

// exact is a target whose prompts are token ids, so that lengths are what a workload says and equal prefixes equal blocks.
func exact(model string) *targetFlags {
	return &targetFlags{api: string(load.Completions), tokenizer: model, session: "default", promptIDs: true, ignoreEOS: true, stream: true, timeout: 10 * time.Minute}
}
