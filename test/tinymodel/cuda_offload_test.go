//go:build cuda

package tinymodel

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"tandem/engine/cuda"
	"tandem/engine/model"
	"tandem/engine/tensor"
)

func offloading(t *testing.T) (*cuda.Backend, *model.Checkpoint, Model) {
	t.Helper()
	m, err := Get("qwen3")
	if err != nil {
		t.Fatal(err)
	}
	ck, err := model.Open(m.Path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ck.Close() })
	return openCUDAConfig(t, ck, cuda.Config{
		KV: KVShape(ck, 40, tensor.BF16), MaxRows: 64, MaxSeqs: 16, MaxPages: 256, Graphs: []int{1, 2},
	}).b, ck, m
}

// copies collects the ends of moves.
type copies chan error

func (c copies) done(err error) { c <- err }

func (c copies) wait(t *testing.T, n int) {
	t.Helper()
	for range n {
		if err := <-c; err != nil {
			t.Fatal(err)
		}
	}
}

// What leaves the device is what its blocks held when that was asked for, though
// pulls, copies and steps overwrite them at once, and it comes back the same.
func TestCUDAOffloads(t *testing.T) {
	b, _, m := offloading(t)
	const n = 20 // more than are on their way at once
	size := b.BlockBytes()
	host, err := b.HostMemory(int64(n * size))
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(4, 4))
	var want [][]byte
	for i := range n {
		block := make([]byte, size)
		for j := range block {
			block[j] = byte(random.Uint32())
		}
		b.Write(int32(i), block)
		want = append(want, block)
	}
	slot := func(i int) []byte { return host[i*size : (i+1)*size] }
	ends, zeros := make(copies, n), make([]byte, size)
	for i := range n {
		b.Offload(int32(i), slot(i), ends.done)
		switch i % 3 {
		case 0:
			b.Write(int32(i), zeros)
		case 1:
			if err := b.CopyBlockPrefix(39, int32(i), 16); err != nil {
				t.Fatal(err)
			}
		case 2:
			var batch tensor.Batch
			batch.Reset()
			batch.Add(m.Sequences[0].Tokens[:16], 0, []int32{int32(i)}, true)
			if err := b.Launch(&batch, []tensor.Pick{{TopP: 1, Logprobs: -1}}); err != nil {
				t.Fatal(err)
			}
			if _, _, err := b.Wait(); err != nil {
				t.Fatal(err)
			}
		}
	}
	ends.wait(t, n)
	for i := range n {
		if !bytes.Equal(slot(i), want[i]) {
			t.Fatalf("block %d is not what it was", i)
		}
		b.Onboard(int32(n+i), slot(i), ends.done)
	}
	ends.wait(t, n)
	got := make([]byte, size)
	for i := range n {
		if b.Read(int32(n+i), got); !bytes.Equal(got, want[i]) {
			t.Fatalf("block %d did not come back as it was", i)
		}
	}
}

// A copy back that is asked for before the copy out has ended brings what that
// brings.
func TestCUDAOnboardsBehindOffloads(t *testing.T) {
	b, _, _ := offloading(t)
	size := b.BlockBytes()
	host, err := b.HostMemory(int64(size))
	if err != nil {
		t.Fatal(err)
	}
	want := bytes.Repeat([]byte{7, 1, 9}, size/3+1)[:size]
	b.Write(3, want)
	ends := make(copies, 2)
	b.Offload(3, host, ends.done)
	b.Onboard(4, host, ends.done)
	ends.wait(t, 2)
	got := make([]byte, size)
	if b.Read(4, got); !bytes.Equal(got, want) {
		t.Error("the block came back before it had left")
	}
}

func TestCUDAOffloadErrors(t *testing.T) {
	b, _, _ := offloading(t)
	size := b.BlockBytes()
	fails := func(name, want string, move func(done func(error))) {
		t.Helper()
		var got error
		if move(func(err error) { got = err }); got == nil || !strings.Contains(got.Error(), want) {
			t.Errorf("%s: %v", name, got)
		}
	}
	fails("before host memory", "no host memory", func(done func(error)) { b.Onboard(0, make([]byte, size), done) })
	host, err := b.HostMemory(int64(2 * size))
	if err != nil {
		t.Fatal(err)
	}
	fails("no block", "block 40 of 40", func(done func(error)) { b.Onboard(40, host[:size], done) })
	fails("short", fmt.Sprintf("%d bytes", size-1), func(done func(error)) { b.Onboard(0, host[:size-1], done) })
	fails("foreign memory", "not that of HostMemory", func(done func(error)) { b.Offload(0, make([]byte, size), done) })
	fails("after an offload that failed", "not that of HostMemory", func(done func(error)) {
		ended := make(copies, 1)
		b.Onboard(0, host[:size], ended.done)
		done(<-ended)
	})
}
