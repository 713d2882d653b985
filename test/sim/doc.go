// Package sim runs engine cores in one goroutine under a virtual clock, with a
// fake model that can tell whether every cache slot it reads holds what it
// should, and a fake network that can delay, lose and repeat messages. The same
// seed gives the same run.
//
// Worker is one core. Cluster is a ctx and a gen worker, and Storm its random
// clients and faults: connections are cut, workers killed, steps fail, disks hang.
//
//	go test ./test/sim -run FaultStorm -seeds=1000
//
// is 100,000 requests and a matter of a minute. Instance is the
// attention-data-parallel ranks of one worker in lockstep, and Traffic its random
// clients; one iteration of all ranks takes some ten microseconds, so that
//
//	go test ./test/sim -run LockstepInstance -iterations=1000000
//
// is a matter of a minute, too. A failure names the seed, which repeats it.
package sim
