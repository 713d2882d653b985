package runner

import "tandem/engine/executor"

// sharesPool tells whether other processes of the host may map the KV pools: those
// of a worker that hands blocks over, if they hold whole blocks.
func (o *LoadOptions) sharesPool() bool {
	return o.Wire != nil && !o.Wire.NoShared && o.Core.Role != executor.Gen && (o.Ranks < 2 || o.AttentionDP)
}
