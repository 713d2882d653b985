package executor

// movers is the fake byte path between ranks.
type movers struct{}

func (m *movers) carryOut(r *rank, e *Effects) {}
