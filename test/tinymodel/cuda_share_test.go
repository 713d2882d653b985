//go:build cuda

package tinymodel

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// sharer is set in a process that shares its pool.
const sharer = "TANDEM_TEST_SHARES"

func shared(id int32, size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(int(id)*13 + i*7)
	}
	return b
}

// A pool that another process shares is read from device to device, as long as it is
// open.
func TestCUDASharesBetweenProcesses(t *testing.T) {
	b, _, _ := offloading(t)
	size := b.BlockBytes()
	if os.Getenv(sharer) != "" {
		for id := range int32(40) {
			b.Write(id, shared(id, size))
		}
		handle, ok := b.Share()
		fmt.Printf("handle %t %s\n", ok, hex.EncodeToString(handle))
		_, _ = io.ReadAll(os.Stdin) // until the reader is done
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), sharer+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close(); _ = cmd.Wait() }()
	var handle []byte
	for lines := bufio.NewScanner(out); handle == nil && lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), "handle true "); ok {
			if handle, err = hex.DecodeString(text); err != nil {
				t.Fatal(err)
			}
		}
	}
	copyBlocks, done, err := b.OpenShared(handle)
	if err != nil {
		t.Fatal(err)
	}
	to, from := []int32{5, 0, 39}, []int32{39, 7, 0}
	if err := copyBlocks(to, from); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, size)
	for i := range to {
		if b.Read(to[i], got); !bytes.Equal(got, shared(from[i], size)) {
			t.Errorf("block %d is not block %d of the other process", to[i], from[i])
		}
	}
	if err := copyBlocks([]int32{1}, []int32{40}); err == nil {
		t.Error("a block outside the pool was copied")
	}
	done()
	done()
	if err := copyBlocks(to, from); err == nil {
		t.Error("a closed pool was read")
	}
}

func TestCUDAShareErrors(t *testing.T) {
	b, _, _ := offloading(t)
	handle, ok := b.Share()
	if !ok {
		t.Fatal("nothing to share")
	}
	if _, _, err := b.OpenShared(handle); err == nil {
		t.Error("a process opened its own pool")
	}
	for at, want := range map[int]string{0: "not that of a KV pool", len(handle) - 16: "blocks here have", len(handle) - 5: "blocks here have"} {
		bad := bytes.Clone(handle)
		bad[at] ^= 0x40
		if _, _, err := b.OpenShared(bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("byte %d: %v", at, err)
		}
	}
	if _, _, err := b.OpenShared(handle[:20]); err == nil {
		t.Error("half a handle was taken")
	}
}
