package des

import "tandem/engine/executor"

// copies begins what a core ordered between its device and the host: there are no disks. Each rank has one queue for
// both ways, so that a copy from a slot comes after the one into it. Contents are not simulated, and all copies succeed.
func (r *rank) copies(moves []executor.Move) {
	size := float64(r.core.Config().Layout.BlockBytes())
	for i := range moves {
		job, life := moves[i].Job, r.in.life
		r.host.send(0, size, func() {
			if job == 0 || r.in.dead || r.in.life != life {
				return
			}
			r.in.transfer(func() {
				r.core.Moved(r.in.sim.now, executor.MoveDone{Job: job, Took: seconds(size / r.host.band)})
				r.carry()
			})
		})
	}
}
