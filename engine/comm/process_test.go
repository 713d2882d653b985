package comm

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"
)

// childAddr, when set, makes the test binary a process with rank 1 of 2.
const childAddr = "TANDEM_TEST_COMM_JOIN"

// child exchanges until the group ends.
func child(addr string) int {
	g, err := Join(context.Background(), addr, Span{1, 1}, Config{Size: 2})
	if err != nil {
		return 1
	}
	for iter := uint64(0); ; iter++ {
		if _, err := g.Rank(1).Exchange(context.Background(), record(g.Rank(1), iter)); err != nil {
			_ = g.Close()
			if errors.Is(err, ErrClosed) {
				return 0
			}
			return 2
		}
	}
}

// startChild gives a group of rank 0 here and rank 1 in a process of its own.
func startChild(t *testing.T, cfg Config) (*Group, *exec.Cmd) {
	t.Helper()
	cfg.Size = 2
	lis, err := Listen("127.0.0.1:0", Span{0, 0}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childAddr+"="+lis.Addr())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	g, err := lis.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	return g, cmd
}

// run exchanges and calls at once, in iteration 100.
func run(g *Group, at func()) error {
	for iter := uint64(0); ; iter++ {
		if iter == 100 {
			at()
		}
		if _, err := g.Rank(0).Exchange(context.Background(), record(g.Rank(0), iter)); err != nil {
			return err
		}
	}
}

func TestProcessThatIsKilled(t *testing.T) {
	g, cmd := startChild(t, Config{})
	within(t, 5*time.Second, func() {
		err := run(g, func() { _ = cmd.Process.Kill() })
		var p *PeerError
		if !errors.As(err, &p) || !errors.Is(err, ErrLost) || p.Ranks != (Span{1, 1}) || p.Iter < 100 {
			t.Error(err)
		}
	})
	_ = cmd.Wait()
}

func TestProcessThatIsStopped(t *testing.T) {
	t.Parallel() // mostly waits
	g, cmd := startChild(t, Config{Timeout: 500 * time.Millisecond})
	within(t, 8*time.Second, func() {
		err := run(g, func() { _ = cmd.Process.Signal(syscall.SIGSTOP) })
		var late *TimeoutError
		if !errors.As(err, &late) || !slices.Equal(late.Missing, []int{1}) || late.Iter < 100 {
			t.Error(err)
		}
		_ = g.Close()
	})
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

func TestProcessThatHearsOfTheEnd(t *testing.T) {
	t.Parallel() // mostly waits
	g, cmd := startChild(t, Config{})
	within(t, 8*time.Second, func() {
		if err := run(g, func() { _ = g.Close() }); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("child: %v", err)
		}
	})
}
