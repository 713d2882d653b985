package executor

import (
	"time"

	"tandem/engine/request"
	"tandem/engine/transfer"
)

// Core is the engine of one rank.
type Core struct {
	cfg Config
	fx  Effects
}

// New makes a core, or says what is wrong with the configuration.
func New(cfg Config) (*Core, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Core{cfg: cfg}, nil
}

func (c *Core) Submit(now time.Duration, r *request.Request, h *transfer.Handle) {}
func (c *Core) Cancel(now time.Duration, id request.ID)                          {}
func (c *Core) Abort(now time.Duration, id transfer.ID) AbortState               { return AbortUnknown }
func (c *Core) Attach(now time.Duration, m transfer.Attach)                      {}
func (c *Core) Done(now time.Duration, m transfer.Done)                          {}
func (c *Core) Detach(now time.Duration, m transfer.Detach)                      {}
func (c *Core) KeepAlive(now time.Duration, m transfer.KeepAlive)                {}
func (c *Core) PullEvent(now time.Duration, e transfer.PullEvent)                {}
func (c *Core) Plan(now time.Duration) *Batch                                    { return nil }
func (c *Core) Apply(now time.Duration, r Result)                                {}
func (c *Core) Effects() *Effects                                                { return &c.fx }
func (c *Core) NextDeadline() (time.Duration, bool)                              { return 0, false }
func (c *Core) Drain(now time.Duration)                                          {}
func (c *Core) Stats() Stats                                                     { return Stats{} }
func (c *Core) Check() error                                                     { return nil }
func (c *Core) Fatal() error                                                     { return nil }
