package main

import (
	"os/signal"
	"syscall"
	"testing"
)

func TestSignals(t *testing.T) {
	if signal.Ignored(syscall.SIGHUP) {
		t.Skip("started with SIGHUP ignored")
	}
	stop, hurry, release := signals(t.Context())
	defer release()
	for _, c := range []struct {
		sig  syscall.Signal
		done <-chan struct{}
	}{{syscall.SIGHUP, stop.Done()}, {syscall.SIGTERM, hurry.Done()}} {
		if hurry.Err() != nil {
			t.Fatal("one signal counted as two")
		}
		if err := syscall.Kill(syscall.Getpid(), c.sig); err != nil {
			t.Fatal(err)
		}
		<-c.done
	}
}
