package main

import (
	"io"
	"os/signal"
	"strings"
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

// A flag of another server ends the command with the key that does the same.
func TestUnknownFlags(t *testing.T) {
	for args, want := range map[string]string{
		"serve -t 30":           "server_start_timeout_sec",
		"serve --api-key x":     "api_keys",
		"serve -l info":         "--log-level",
		"up --max_batch_size 8": "the key max_batch_size",
		"up --nonsense":         "unknown flag: --nonsense",
	} {
		cmd := root()
		cmd.SetArgs(strings.Fields(args))
		cmd.SetOut(io.Discard)
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

// A hostname that is none of this machine's is what the error names, not the port.
func TestListenNamesTheHost(t *testing.T) {
	for _, host := range []string{"no such host", "http://localhost", "192.0.2.7", "line\nbreak"} {
		_, err := listen(host, 0)
		if err == nil || !strings.HasPrefix(err.Error(), "hostname: ") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v", host, err)
		}
	}
}
