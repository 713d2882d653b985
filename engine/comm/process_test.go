package comm

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// childJob, when set to "rank size address", makes the test binary a process
// with one rank. Rank 0 listens there and prints where; each prints how its
// group ended.
const childJob = "TANDEM_TEST_COMM_CHILD"

// child exchanges until the group ends.
func child(job string) int {
	var rank, size int
	var addr string
	if _, err := fmt.Sscan(job, &rank, &size, &addr); err != nil {
		return 1
	}
	g, err := childGroup(addr, rank, Config{Size: size})
	if err != nil {
		return 1
	}
	for iter := uint64(0); ; iter++ {
		if _, err := g.Rank(rank).Exchange(context.Background(), record(g.Rank(rank), iter)); err != nil {
			fmt.Println(g.Err())
			_ = g.Close()
			if errors.Is(err, ErrClosed) {
				return 0
			}
			return 2
		}
	}
}

func childGroup(addr string, rank int, cfg Config) (*Group, error) {
	if rank > 0 {
		return Join(context.Background(), addr, Span{rank, rank}, cfg)
	}
	lis, err := Listen(addr, Span{0, 0}, cfg)
	if err != nil {
		return nil, err
	}
	fmt.Println(lis.Addr())
	return lis.Accept(context.Background())
}

// spawn starts a child and gives a reader of what it prints.
func spawn(t *testing.T, rank, size int, addr string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d %s", childJob, rank, size, addr))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd, bufio.NewScanner(out)
}

// startChild gives a group of rank 0 here and rank 1 in a process of its own.
func startChild(t *testing.T, cfg Config) (*Group, *exec.Cmd) {
	t.Helper()
	cfg.Size = 2
	lis, err := Listen("127.0.0.1:0", Span{0, 0}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	cmd, _ := spawn(t, 1, 2, lis.Addr())
	g, err := lis.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	return g, cmd
}

// run exchanges and calls at once, in iteration 100.
func run(g *Group, at func()) error {
	rank := g.Rank(g.Ranks().First)
	for iter := uint64(0); ; iter++ {
		if iter == 100 {
			at()
		}
		if _, err := rank.Exchange(context.Background(), record(rank, iter)); err != nil {
			return err
		}
	}
}

// TestProcessThatIsKilled has every process that is left, in less than noticed,
// name the rank that was killed and where it was.
func TestProcessThatIsKilled(t *testing.T) {
	lis, err := Listen("127.0.0.1:0", Span{0, 0}, Config{Size: 3})
	if err != nil {
		t.Fatal(err)
	}
	victim, _ := spawn(t, 1, 3, lis.Addr())
	other, printed := spawn(t, 2, 3, lis.Addr())
	g, err := lis.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	within(t, time.Minute, func() {
		var killed time.Time
		_ = run(g, func() {
			killed = time.Now()
			_ = victim.Process.Kill()
		})
		checkKilled(t, g.Err(), 1, time.Since(killed))
		printed.Scan()
		checkNoticed(t, time.Since(killed))
		want := "rank 1 left the group at iteration "
		if got := printed.Text(); !strings.HasPrefix(got, want) || !strings.Contains(got, " in exchange: connection lost") {
			t.Errorf("the other process says %q", got)
		}
	})
	_, _ = victim.Wait(), other.Wait()
}

// TestRootThatIsKilled is the same for the process of rank 0.
func TestRootThatIsKilled(t *testing.T) {
	victim, printed := spawn(t, 0, 2, "127.0.0.1:0")
	if !printed.Scan() {
		t.Fatal("no address")
	}
	g, err := Join(t.Context(), printed.Text(), Span{1, 1}, Config{Size: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	within(t, time.Minute, func() {
		var killed time.Time
		_ = run(g, func() {
			killed = time.Now()
			_ = victim.Process.Kill()
		})
		checkKilled(t, g.Err(), 0, time.Since(killed))
	})
	_ = victim.Wait()
}

// noticed bounds the time from a process's death until its peers say so: below the 30 s for which they would wait for it.
const noticed = 20 * time.Second

func checkKilled(t *testing.T, err error, who int, after time.Duration) {
	t.Helper()
	ranks, iter, op := Blame(err)
	if !errors.Is(err, ErrLost) || !slices.Equal(ranks, []int{who}) || iter < 100 || op != OpExchange {
		t.Error(err)
	}
	checkNoticed(t, after)
}

func checkNoticed(t *testing.T, after time.Duration) {
	t.Helper()
	if after > noticed {
		t.Errorf("noticed after %v", after)
	}
}

func TestProcessThatIsStopped(t *testing.T) {
	t.Parallel() // mostly waits
	g, cmd := startChild(t, Config{Timeout: 2 * time.Second})
	within(t, time.Minute, func() {
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
	within(t, time.Minute, func() {
		if err := run(g, func() { _ = g.Close() }); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("child: %v", err)
		}
	})
}
