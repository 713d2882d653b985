//go:build unix && !linux

package main

import "syscall"

// childAttr puts a child into a process group of its own, so that Ctrl-C reaches only the frontend, which then stops the
// children in order.
func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
