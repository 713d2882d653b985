package adprouter

// Plan is what an instance does in one iteration. All ranks derive the same one
// from the same table.
type Plan struct {
	Intent  Intent // of the batch; None: no forward
	Pad     []bool // [rank] the rank has no row of its own and must take part
	PadKind Intent // Generation or Context; None if nobody pads
	Held    bool   // prefill is held back: ctx rows leave the batch, their new blocks go back
	Payload bool   // a payload gather follows
}

// Runs reports whether there is a forward.
func (p *Plan) Runs() bool { return p.Intent != None }

// PadOptions say how an instance pads.
type PadOptions struct {
	// Mixed is set for a worker that prefills and decodes; it always pads with a
	// decode row. The other roles pad with what the batch is.
	Mixed bool
	// Balance holds prefill back, nil = never.
	Balance *Balance
}

// Decide computes the plan from a table. A rank without rows pads when any rank
// has some, and cannot refuse: its pad was reserved at the start. Nobody pads for
// nobody, so no forward consists of pads only.
func Decide(rows []Row, opt PadOptions, plan *Plan) {
	plan.Held, plan.Payload = false, false
	plan.decide(rows, opt.Mixed)
	if opt.Balance != nil && opt.Balance.step(rows, plan) {
		plan.Held = true
		plan.decide(rows, opt.Mixed)
	}
	for i := range rows {
		plan.Payload = plan.Payload || rows[i].PayloadBytes > 0
	}
}

func (p *Plan) decide(rows []Row, mixed bool) {
	p.Intent, p.PadKind = None, None
	if cap(p.Pad) < len(rows) {
		p.Pad = make([]bool, len(rows))
	}
	p.Pad = p.Pad[:len(rows)]
	for i := range rows {
		p.Intent = max(p.Intent, p.intent(&rows[i]))
	}
	for i := range rows {
		p.Pad[i] = p.Intent != None && p.intent(&rows[i]) == None
		if p.Pad[i] {
			p.PadKind = p.Intent
			if mixed {
				p.PadKind = Generation
			}
		}
	}
}

// intent is what the rank runs: with prefill held back, only what it decodes.
func (p *Plan) intent(r *Row) Intent {
	switch {
	case !p.Held:
		return r.Intent
	case r.GenRequests > 0:
		return Generation
	default:
		return None
	}
}

// PadShape returns the tokens of a pad and how many of them are draft
// positions, for drafts draft tokens per step.
func PadShape(kind Intent, drafts int) (tokens, draftTokens int) {
	if kind == Generation {
		return 1 + drafts, drafts
	}
	return 1, 0
}
