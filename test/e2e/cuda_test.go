//go:build e2e && cuda

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"tandem/kernels/cuda/emu"
	"tandem/test/tinymodel"
)

// buildTags are those of the binaries under test.
const buildTags = "cuda"

// onDevices points processes that are started from here to the emulator, or, with TANDEM_GPU=1, leaves them to the
// machine's devices.
func onDevices(t *testing.T) {
	t.Helper()
	if os.Getenv("TANDEM_GPU") != "" {
		return
	}
	lib, err := emu.Build()
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range append(lib.Env(), "TANDEM_EMU_DEVICES=2") {
		k, v, _ := strings.Cut(kv, "=")
		t.Setenv(k, v)
	}
}

// TestOnDevices is the main job on GPUs: ctx, gen and frontend, a dense model and a mixture of experts, one rank and two
// attention-DP ranks on two devices. What the CPU says of the same requests is the measure.
func TestOnDevices(t *testing.T) {
	onDevices(t)
	const adp = "tensor_parallel_size: 2\nenable_attention_dp: true\nattention_dp_config: {kv_cache_routing_conversation_affinity: true}\n"
	for _, c := range []struct {
		name, yaml string
		write      func(dir string, seed uint64) error
		nccl       string // another library than the machine's
	}{
		{"dense", "", tinymodel.WriteServable, ""},
		{"experts on two devices", adp, tinymodel.WriteServableMoE, ""},
		{"experts on two devices without NCCL", adp, tinymodel.WriteServableMoE, "/nowhere/libnccl.so"},
		{"two devices as one", "tensor_parallel_size: 2\n", tinymodel.WriteServable, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.nccl != "" {
				t.Setenv("TANDEM_NCCL", c.nccl)
			}
			dir := t.TempDir()
			if err := c.write(dir, 1); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), answerLimit)
			defer cancel()
			cpu := serveTiny(t, dir, "mixed", "cpu", "")
			ctxWorker, genWorker := serveTiny(t, dir, "ctx", "cuda", c.yaml), serveTiny(t, dir, "gen", "cuda", c.yaml)
			front := startFrontend(t, []*process{ctxWorker}, []*process{genWorker}, "")
			same, all := 0, 0
			for i := range 6 {
				body := sampleOf("", chatPath, user(fmt.Sprintf("question %d", i)), "max_tokens", 12, "model", "tiny", "ignore_eos", true,
					"logprobs", true, "top_logprobs", 2)
				want, err := ask(ctx, cpu.url, chatPath, body.streamed(false))
				if err != nil {
					t.Fatal(err)
				}
				got, err := ask(ctx, front.url, chatPath, body.streamed(i%2 == 1), "X-Session-ID", fmt.Sprint("s", i%3))
				if err != nil {
					t.Fatal(err)
				}
				if got.header.Get("X-Disagg-Path") != "ctx_gen" || len(got.IDs) != len(want.IDs) {
					t.Errorf("path %q, %d tokens, want %d", got.header.Get("X-Disagg-Path"), len(got.IDs), len(want.IDs))
				}
				n, err := sameUntil(got, want)
				if err != nil {
					t.Errorf("question %d: %v", i, err)
				}
				same, all = same+n, all+len(want.IDs)
			}
			if same < all/2 {
				t.Errorf("only %d of %d tokens are those of the CPU", same, all)
			}
			waitClean(t, answerLimit, ctxWorker, genWorker)
		})
	}
}

func serveTiny(t *testing.T, dir, role, backend, yaml string) *process {
	t.Helper()
	file := writeFile(t, "worker.yaml", yaml+"max_num_tokens: 256\nmax_batch_size: 8\nmax_seq_len: 256\nkv_cache_config: {max_tokens: 4096}\n")
	return start(t, backend+" "+role, engineBin, "serve", dir, "--served-model-name", "tiny", "--role", role, "--backend", backend, "--port", "0", "-c", file)
}

// sameUntil counts the tokens that two answers begin with alike. Rounding may only move log-probabilities a little, and
// turn a choice between near equals, behind which each text is another one.
func sameUntil(got, want *result) (int, error) {
	const near = 0.15
	type entry struct {
		Logprob float64
		Top     []struct{ Logprob float64 } `json:"top_logprobs"`
	}
	for i := range want.IDs {
		var g, w entry
		if err := errors.Join(json.Unmarshal([]byte(got.Logprobs[i]), &g), json.Unmarshal([]byte(want.Logprobs[i]), &w)); err != nil {
			return i, err
		}
		switch {
		case got.IDs[i] != want.IDs[i] && w.Top[0].Logprob-w.Top[1].Logprob > 2*near:
			return i, fmt.Errorf("token %d is %d (%s), want %d (%s)", i, got.IDs[i], got.Logprobs[i], want.IDs[i], want.Logprobs[i])
		case got.IDs[i] != want.IDs[i]:
			return i, nil
		case math.Abs(g.Logprob-w.Logprob) > near:
			return i, fmt.Errorf("token %d has log-probability %g, want %g", i, g.Logprob, w.Logprob)
		}
	}
	return len(want.IDs), nil
}
