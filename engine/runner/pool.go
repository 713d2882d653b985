package runner

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"

	"tandem/engine/cpu"
	"tandem/engine/executor"
	"tandem/engine/tensor"
)

// memoryShare is the part of available memory that the KV pool may take when
// nobody says how large it should be.
const memoryShare = 0.25

// DefaultMemory is the part of a GPU's memory, after weights and workspace, that
// the KV pool takes when nobody says how much.
const DefaultMemory = 0.9

// GraphSizes are the usual sizes of decode batches that a GPU captures, up to most:
// close together where padding would cost most.
func GraphSizes(most int) (sizes []int) {
	for n := 1; n < most; {
		sizes = append(sizes, n)
		if n < 8 {
			n *= 2
		} else {
			n += 8
		}
	}
	if most > 0 {
		sizes = append(sizes, most)
	}
	return sizes
}

// poolBlocks returns the blocks of the KV pool of one of this process's ranks:
// tokens if given, else what max_batch_size sequences of full length need, at
// most share bytes unless that is 0.
func poolBlocks(core executor.Config, kv tensor.KVShape, tokens int, share int64) int {
	blocks := func(n int) int { return (n-1)/core.BlockTokens + 1 }
	if tokens > 0 {
		return blocks(tokens)
	}
	want := core.MaxBatch * blocks(core.MaxSeqLen)
	if share > 0 {
		want = min(want, int(share)/kv.BlockBytes())
	}
	return max(want, 1)
}

// checkPool refuses pools of tokens that the machine cannot hold: the system would hand them out page by page and kill the
// process when they fill. total is the memory of the machine in bytes, 0 = unknown.
func checkPool(kv tensor.KVShape, tokens, ranks int, total int64) error {
	if tokens <= 0 || total <= 0 || int64(kv.Blocks) <= total/int64(ranks*kv.BlockBytes()) {
		return nil
	}
	const gib = 1 << 30
	each := ""
	if ranks > 1 {
		each = fmt.Sprintf(" on each of %d ranks", ranks)
	}
	return fmt.Errorf("kv_cache_config.max_tokens: %d tokens%s take %.1f GiB and this machine has %.1f: lower it",
		tokens, each, float64(ranks)*float64(kv.Blocks)*float64(kv.BlockBytes())/gib, float64(total)/gib)
}

// totalMemory returns the bytes of the machine, or of this process's control group; 0 when neither is known.
func totalMemory() int64 {
	total := meminfo("MemTotal:")
	if limit := number("/sys/fs/cgroup/memory.max"); limit > 0 && (total == 0 || limit < total) {
		total = limit
	}
	return total
}

// availableMemory returns the bytes this process may still use, by the system's
// figure and its control group's limit; 0 when neither is known.
func availableMemory() int64 {
	free := meminfo("MemAvailable:")
	limit, used := number("/sys/fs/cgroup/memory.max"), number("/sys/fs/cgroup/memory.current")
	if limit > 0 && (free == 0 || limit-used < free) {
		free = max(0, limit-used)
	}
	return free
}

func meminfo(key string) int64 {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		fields := strings.Fields(sc.Text())
		if len(fields) >= 2 && fields[0] == key {
			kb, _ := strconv.ParseInt(fields[1], 10, 64)
			return kb << 10
		}
	}
	return 0
}

// number reads a file that holds one number; 0 if it does not.
func number(path string) int64 {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n
}

// AvailableMemory returns the bytes this process may still use, 0 if unknown,
// and MemoryShare the part of them that the pools of all workers on a host may
// take together when nobody says how large they should be.
func AvailableMemory() int64 { return availableMemory() }

// DefaultThreads is the number of compute threads a worker takes when nobody says: one per physical core.
func DefaultThreads() int { return cpu.DefaultThreads() }

// MemoryShare is described at AvailableMemory.
func MemoryShare() float64 { return memoryShare }
