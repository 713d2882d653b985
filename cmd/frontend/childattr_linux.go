package main

import "syscall"

// childAttr puts a child into a process group of its own, so that Ctrl-C reaches only the frontend, which then stops the
// children in order; and has the kernel kill it when the frontend dies without doing so.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
