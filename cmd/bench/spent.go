package main

import (
	"fmt"
	"syscall"
	"time"
)

// usage is what this process has used so far.
type usage struct {
	processor time.Duration
	memory    int64 // bytes, the most that it had at a time
}

// spent asks the system; zero if that does not tell.
func spent() (u usage) {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) == nil {
		u.processor = time.Duration(r.Utime.Nano() + r.Stime.Nano())
		u.memory = r.Maxrss << 10 // Linux counts KiB
	}
	return u
}

// since is what was used after another moment; memory stays the most since the start.
func (u usage) since(before usage) usage {
	u.processor -= before.processor
	return u
}

func (u usage) String() string {
	return fmt.Sprintf("%.1f s of processor, at most %.2f GiB of memory", u.processor.Seconds(), float64(u.memory)/(1<<30))
}
