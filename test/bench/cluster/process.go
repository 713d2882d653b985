// Package cluster starts servers as processes of this machine, for measurements:
// single programs, and workers behind a frontend.
package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Process is a program that was started.
type Process struct {
	URL   string // of its server, once it is known
	Admin string // URL of its admin listener, empty = none
	cmd   *exec.Cmd
	log   *os.File
}

// Start starts a program, with more variables than this one's environment, in a process group of its own. Its words go to a file,
// from which the last are told if it fails. The end of ctx stops it.
func Start(ctx context.Context, env []string, name string, args ...string) (*Process, error) {
	log, err := os.CreateTemp("", "bench-*.log")
	if err != nil {
		return nil, fmt.Errorf("scratch file: %w", err)
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = grace
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", filepath.Base(name), err), log.Close(), os.Remove(log.Name()))
	}
	return &Process{cmd: cmd, log: log}, nil
}

// grace is how long a program may take to end.
const grace = 10 * time.Second

// Group is the process group of the program and of what it starts.
func (p *Process) Group() int { return p.cmd.Process.Pid }

// Stop ends the program and what it has started, and waits for it. A nil Process has ended.
func (p *Process) Stop() {
	if p == nil || p.cmd == nil {
		return
	}
	_ = syscall.Kill(-p.Group(), syscall.SIGTERM)
	t := time.AfterFunc(grace, func() { _ = syscall.Kill(-p.Group(), syscall.SIGKILL) })
	_ = p.cmd.Wait() // it was told to end
	t.Stop()
	_ = p.log.Close()
	_ = os.Remove(p.log.Name())
	p.cmd = nil
}

// Until polls for a condition. When it does not come within limit the program is stopped, and its last words are the error.
func (p *Process) Until(ctx context.Context, limit time.Duration, ready func() bool) error {
	deadline := time.Now().Add(limit)
	for !ready() {
		if time.Now().After(deadline) || ctx.Err() != nil || !alive(p.cmd.Process.Pid) {
			words := p.words()
			p.Stop()
			return fmt.Errorf("it does not get ready; its last words: %s", words)
		}
		time.Sleep(100 * time.Millisecond)
	}
	return nil
}

// Ready waits for the line that this project's servers print when they serve, and reads their addresses from it.
func (p *Process) Ready(ctx context.Context, limit time.Duration) error {
	return p.Until(ctx, limit, func() bool {
		file, err := os.Open(p.log.Name())
		if err != nil {
			return false
		}
		defer file.Close()
		for sc := bufio.NewScanner(file); sc.Scan(); {
			if rest, ok := strings.CutPrefix(sc.Text(), "TANDEM_READY "); ok {
				p.addresses(rest)
				return true
			}
		}
		return false
	})
}

// addresses reads KEY=VALUE words.
func (p *Process) addresses(line string) {
	for _, word := range strings.Fields(line) {
		switch key, val, _ := strings.Cut(word, "="); key {
		case "url":
			p.URL = val
		case "admin":
			p.Admin = val
		}
	}
}

// alive tells whether a child runs: one that has ended is a zombie until it is waited for.
func alive(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return syscall.Kill(pid, 0) == nil
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z")
}

// words are the last lines of the program's output.
func (p *Process) words() string {
	data, _ := os.ReadFile(p.log.Name())
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], " | ")
}
