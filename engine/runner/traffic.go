package runner

import "tandem/engine/transfer"

// traffic returns what the ranks of this process moved between workers, one entry
// for each byte path, nil without transfer.
func (e *Engine) traffic() (sum []transfer.Traffic) {
	for _, r := range e.ranks {
		t, ok := r.transport.(interface{ Traffic() []transfer.Traffic })
		if !ok {
			continue
		}
		for i, one := range t.Traffic() {
			if i == len(sum) {
				sum = append(sum, transfer.Traffic{Path: one.Path})
			}
			to := &sum[i]
			to.Sent, to.Received = to.Sent+one.Sent, to.Received+one.Received
			to.Pulls, to.Resumed = to.Pulls+one.Pulls, to.Resumed+one.Resumed
		}
	}
	return sum
}
