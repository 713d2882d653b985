package main

import (
	"context"
	"errors"

	"tandem/engine/runner"
	"tandem/serve/config"
)

// spread says how the model is computed by several ranks.
func (p *process) spread(o *runner.LoadOptions, key []byte) {
	c := &p.cfg
	o.Ranks, o.AttentionDP, o.ADP = c.TensorParallelSize, c.ADP(), c.AttentionDP.Settings
	o.SplitMLP, o.HangTimeout = c.ADP() && c.AttentionDP.DenseMLP == config.DenseSplit, c.HangTimeout()
	o.Stall = c.Stall()
	if g := p.group; g != nil {
		o.Group = &runner.GroupOptions{
			Addr: g.Addr, First: g.First, Last: g.Last, Key: key, Host: wireHost(p.host, p.listener.Addr()),
		}
		p.log.Info("the instance is ready when all its ranks have joined", "ranks", g, "of", c.TensorParallelSize, "rank_group", g.Addr)
	}
}

// dead reports an engine that stopped by itself. Ranks elsewhere stop in good
// order when the process of rank 0 does.
func (p *process) dead(err error) error {
	switch {
	case err != nil:
		return err
	case p.group.Leads():
		return errors.New("the engine stopped")
	}
	p.log.Info("the process of rank 0 has ended the instance", "ranks", p.group)
	return nil
}

// follow waits for the process of rank 0 to end the instance: requests may run on
// the ranks here. After the grace they leave, which ends it for all.
func (p *process) follow(grace context.Context, stop context.CancelFunc, died chan error) error {
	select {
	case err := <-died:
		return err
	case <-grace.Done():
		p.log.Warn("rank 0 goes on: leaving ends the instance", "ranks", p.group)
		stop()
		return <-died
	}
}
