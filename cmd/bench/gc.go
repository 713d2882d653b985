package main

import (
	"os"
	"runtime/debug"
	"syscall"
)

// quickGC trades memory for time, as a load client should, and allows as many connections as the system does. GOGC, if
// set, is left alone.
func quickGC() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
	var lim syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &lim) == nil {
		lim.Cur = lim.Max
		_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &lim) // the limit that is there may do
	}
}
