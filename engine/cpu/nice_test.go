//go:build linux

package cpu

import (
	"os"
	"runtime"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"tandem/engine/tensor"
)

// niceness is that of a thread; the system call adds it to 20 the other way round.
func niceness(t *testing.T, tid int) int {
	t.Helper()
	p, err := unix.Getpriority(unix.PRIO_PROCESS, tid)
	if err != nil {
		return -1 // it has ended
	}
	return 20 - p
}

// TestNice: the threads of a backend have its priority, those of the program their own.
func TestNice(t *testing.T) {
	const lowest = 19 // which everybody may have, whatever they are started with
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if niceness(t, unix.Gettid()) == lowest {
		t.Skip("the tests have it already")
	}
	b, err := New(Config{
		Threads: 4, Nice: lowest, MaxRows: 16,
		KV: tensor.KVShape{Layers: 1, KVHeads: 1, HeadDim: 16, BlockTokens: 16, Blocks: 2, DType: tensor.BF16},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Skip(err)
	}
	lowered := 0
	for _, task := range tasks {
		if tid, err := strconv.Atoi(task.Name()); err == nil && niceness(t, tid) == lowest {
			lowered++
		}
	}
	if lowered < 3 || lowered > 4 { // the one that started them may not be gone yet
		t.Errorf("%d threads have the priority of 3", lowered)
	}
	if n := niceness(t, unix.Gettid()); n == lowest {
		t.Error("the caller's thread has it, too")
	}
	joined := make(chan int)
	go func() {
		runtime.LockOSThread()
		b.JoinThreads()
		joined <- niceness(t, unix.Gettid())
	}()
	if n := <-joined; n != lowest {
		t.Errorf("a thread that joined has %d", n)
	}
}
