//go:build e2e

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const bytesBy = `tandem_kv_transfer_bytes_total{direction="in",path=`

// mapped tells whether a gen worker has another one's KV pool mapped: its own is private.
func mapped(t *testing.T, p *process) bool {
	t.Helper()
	maps, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.pid()), "maps"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(maps), "memfd:tandem-kv-pool")
}

// files counts the sockets and the pools that a process has open.
func files(t *testing.T, p *process) (sockets, memory int) {
	t.Helper()
	dir := filepath.Join("/proc", strconv.Itoa(p.pid()), "fd")
	fds, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		to, _ := os.Readlink(filepath.Join(dir, fd.Name()))
		switch {
		case strings.HasPrefix(to, "socket:"):
			sockets++
		case strings.HasPrefix(to, "/memfd:tandem-kv-pool"):
			memory++
		}
	}
	return sockets, memory
}

// handOver runs both legs of a request by hand and wants its blocks to come by
// shared memory.
func handOver(ctx context.Context, t *testing.T, prefill, decode *process, id int64) {
	t.Helper()
	s := sampleOf("", chatPath, user(prose(uint64(id), 120)), "max_tokens", 4)
	params, ids := contextLeg(ctx, t, prefill, s, id)
	if _, err := generationLeg(ctx, decode, s, params, ids); err != nil {
		t.Fatal(err)
	}
	text := get(t, decode.url+"/metrics")
	if shm, tcp := metric(text, bytesBy+`"shm"}`), metric(text, bytesBy+`"tcp"}`); shm == "" || shm == "0" || tcp != "0" {
		t.Errorf("%q bytes came by shm, %q by tcp", shm, tcp)
	}
	if !mapped(t, decode) {
		t.Error("the gen worker has not mapped the pool")
	}
	if _, memory := files(t, decode); memory != 0 {
		t.Errorf("the gen worker keeps the descriptors of %d pools open", memory)
	}
}

// TestSharedMemory: workers of one host share memory without being told to, and
// whichever is killed leaves nothing at the other.
func TestSharedMemory(t *testing.T) {
	t.Parallel() // mostly waits
	w := workerConfig{lease: 4 * time.Second, threads: 1}
	prefill, first := startWorker(t, "ctx", w), startWorker(t, "gen", w)
	ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()
	client.CloseIdleConnections()
	socketsBefore, memoryBefore := files(t, prefill)
	handOver(ctx, t, prefill, first, 1)

	// The gen worker dies while blocks wait for it.
	contextLeg(ctx, t, prefill, sampleOf("", chatPath, user(prose(9, 120)), "max_tokens", 4), 2)
	first.signal(t, syscall.SIGKILL)
	<-first.done
	waitClean(t, settleLimit, prefill)
	var sockets, memory int
	if !eventually(settleLimit, func() bool {
		client.CloseIdleConnections()
		sockets, memory = files(t, prefill)
		return sockets <= socketsBefore && memory == memoryBefore
	}) {
		t.Errorf("the ctx worker has %d sockets and %d pools, before the dead gen worker %d and %d", sockets, memory, socketsBefore, memoryBefore)
	}

	// The ctx worker dies: its memory must not live on in the gen worker.
	second := startWorker(t, "gen", w)
	handOver(ctx, t, prefill, second, 3)
	prefill.signal(t, syscall.SIGKILL)
	<-prefill.done
	if !eventually(settleLimit, func() bool { return !mapped(t, second) }) {
		t.Error("the gen worker keeps the memory of the dead ctx worker")
	}
	waitClean(t, settleLimit, second)
}
