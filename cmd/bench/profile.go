package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"tandem/engine/executor"
	"tandem/engine/hub"
	"tandem/engine/runner"
	"tandem/test/bench/profile"
)

type profileFlags struct {
	check, out, backend string
	threads, poolTokens int
	force               bool
}

func profileCommand() *cobra.Command {
	var f profileFlags
	cmd := &cobra.Command{
		Use:   "profile [MODEL]",
		Short: "Fit the time of an iteration to what it computes, for the simulator",
		Long: "Runs a grid of batches on this machine's engine, or takes the iterations that a GPU check has measured, and fits\n" +
			"five coefficients by non-negative least squares. Profiles that miss the measured times are refused.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd.Context(), cmd.ErrOrStderr(), cmd.OutOrStdout(), args)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&f.check, "gpu-check", "", "output of the GPU check to take the iterations from, instead of measuring")
	fs.StringVarP(&f.out, "output", "o", "", "file to write, empty = standard output")
	fs.StringVar(&f.backend, "backend", "auto", "auto, cpu or cuda")
	fs.IntVar(&f.threads, "threads", 0, "compute threads, 0 = one per core")
	fs.IntVar(&f.poolTokens, "pool-tokens", 32768, "tokens of the KV pool, which bounds batches and contexts")
	fs.BoolVar(&f.force, "force", false, "write the profile of a poor fit too")
	return cmd
}

func (f *profileFlags) run(ctx context.Context, log, out io.Writer, args []string) error {
	var points []profile.Point
	var model, device string
	var err error
	if err := f.usable(); err != nil {
		return err
	}
	switch {
	case f.check != "" && len(args) > 0:
		return errors.New("--gpu-check has its model: leave MODEL out")
	case f.check != "":
		points, model, device, err = readCheck(f.check)
	default:
		name := hub.DefaultModel
		if len(args) > 0 {
			name = args[0]
		}
		points, model, device, err = f.measure(ctx, log, name)
	}
	if err != nil {
		return err
	}
	p, err := profile.Make(model, device, points)
	if err != nil {
		return err
	}
	c := p.Coefficients
	_, _ = fmt.Fprintf(log, "iteration %.3g s, prompt token %.3g s, request %.3g s, context token %.3g s, attention %.3g s; %d iterations, R2 %.4f, residual p95 %.1f %%\n",
		c.Iteration, c.CtxToken, c.GenRequest, c.GenContext, c.CtxAttention, p.Fit.Points, p.Fit.R2, 100*p.Fit.ResidualP95)
	if err := p.Fit.Check(); err != nil && !f.force {
		return fmt.Errorf("%w; measure on an idle machine, or write it with --force", err)
	}
	return f.write(out, p)
}

// leastPool is the pool that leaves enough of the grid to fit a profile to.
const leastPool = 2048

// usable refuses flags with which minutes of measuring would be in vain.
func (f *profileFlags) usable() error {
	if f.poolTokens < leastPool || f.threads < 0 {
		return fmt.Errorf("--pool-tokens %d and --threads %d: want %d and 0 at least", f.poolTokens, f.threads, leastPool)
	}
	if f.out == "" {
		return nil
	}
	if st, err := os.Stat(filepath.Dir(f.out)); err != nil || !st.IsDir() {
		return fmt.Errorf("--output %s: there is no folder %s", f.out, filepath.Dir(f.out))
	}
	if st, err := os.Stat(f.out); err == nil && st.IsDir() {
		return fmt.Errorf("--output %s: is a folder, want a file", f.out)
	}
	return nil
}

func readCheck(path string) ([]profile.Point, string, string, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, "", "", err
	}
	defer file.Close()
	points, model, device, err := profile.ReadPoints(file)
	if err != nil {
		return nil, "", "", fmt.Errorf("%s: %w", path, err)
	}
	return points, model, device, nil
}

// measure loads the model without its tokenizer and runs the grid on its first rank.
func (f *profileFlags) measure(ctx context.Context, log io.Writer, name string) (points []profile.Point, model, device string, err error) {
	path, err := hub.Locate(name)
	if err != nil {
		return nil, "", "", err
	}
	core := executor.DefaultConfig()
	core.MaxBatch, core.MaxNumTokens = 128, 2304
	l, err := runner.Load(ctx, runner.LoadOptions{
		Path: path, Core: core, Backend: f.backend, Threads: f.threads, PoolTokens: f.poolTokens, TokensOnly: true,
	})
	if err != nil {
		return nil, "", "", err
	}
	defer l.Close()
	info := l.Engine.Info()
	g := profile.DefaultGrid(info.Vocab, core.BlockTokens, f.poolTokens/core.BlockTokens, info.MaxNumTokens)
	last := time.Now()
	points, err = g.Measure(interruptible{ctx, l.Backends[0]}, func(done, all int, _ profile.Point) {
		if time.Since(last) > time.Second || done == all {
			last = time.Now()
			_, _ = fmt.Fprintf(log, "%d of %d iterations measured\n", done, all)
		}
	})
	return points, info.Model, info.Backend, err
}

func (f *profileFlags) write(out io.Writer, p *profile.Profile) error {
	if f.out == "" {
		return p.Write(out)
	}
	return replace(f.out, p.Write)
}

// replace writes a file whole, or leaves what is there as it is.
func replace(path string, write func(io.Writer) error) error {
	if st, err := os.Stat(path); err == nil && !st.Mode().IsRegular() { // a pipe, or /dev/stdout
		file, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		return errors.Join(write(file), file.Close())
	}
	temp, err := os.CreateTemp(filepath.Dir(path), ".bench-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(temp.Name()) }() // gone already if all went well
	if err := errors.Join(write(temp), temp.Chmod(0o644), temp.Close()); err != nil {
		return err
	}
	return os.Rename(temp.Name(), path)
}
