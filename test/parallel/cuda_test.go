//go:build cuda

package parallel

import (
	"fmt"
	"os"
	"testing"

	"tandem/engine/adprouter"
	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/kernels/cuda/emu"
	"tandem/test/tinymodel"
)

// The tests run on the emulator, or, with TANDEM_GPU=1, on the machine's devices.
func TestMain(m *testing.M) {
	if os.Getenv("TANDEM_GPU") == "" {
		lib, err := emu.Build()
		if err == nil {
			err = lib.Setenv()
		}
		for k, v := range map[string]string{"TANDEM_EMU_DEVICES": "2", "TANDEM_EMU_LAUNCH_MEMORY": fmt.Sprint(launchMemory)} {
			if err == nil {
				err = os.Setenv(k, v)
			}
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// alike compares what two engines made of the same requests. Devices round
// differently, so a choice between near equals may fall either way, and what
// follows it is another text.
func alike(t *testing.T, got, want [][]request.Token) {
	t.Helper()
	const near = 0.15 // difference of log-probabilities that rounding makes
	same, all := 0, 0
	for i := range want {
		if i%2 != 0 {
			continue // seeded: a draw may fall on either side of any edge
		}
		for j, w := range want[i] {
			if all++; j >= len(got[i]) {
				t.Fatalf("request %d ends after %d tokens, want %d", i, len(got[i]), len(want[i]))
			}
			g := got[i][j]
			if g.ID == w.ID && g.Logprob-w.Logprob < near && w.Logprob-g.Logprob < near {
				same++
				continue
			}
			if g.ID == w.ID || len(w.Top) < 2 || w.Top[0].Logprob-w.Top[1].Logprob > near {
				t.Errorf("request %d, token %d: %+v, want %+v", i, j, g, w)
			}
			break
		}
	}
	if same < all*2/3 {
		t.Errorf("only %d of %d tokens are the same", same, all)
	}
}

// Whole engines on devices say what the CPU says: alone, with ranks on two devices
// that share experts, and over a hand-over between such engines.
func TestEnginesOnDevices(t *testing.T) {
	const n, tokens = 6, 6
	for _, name := range []string{"qwen3moe-mixed", "qwen3"} {
		t.Run(name, func(t *testing.T) {
			m, err := tinymodel.Get(name)
			if err != nil {
				t.Fatal(err)
			}
			want := answers(t, division{ranks: 1}.start(t, m.Path), m.Vocab, n, tokens)
			talk := func(s *adprouter.Settings) { s.Conversations = true }
			adp2 := division{ranks: 2, attentionDP: true, adp: talk, backend: "cuda"}
			t.Run("alone", func(t *testing.T) {
				alike(t, answers(t, division{ranks: 1, backend: "cuda"}.start(t, m.Path), m.Vocab, n, tokens), want)
			})
			t.Run("steps in turn", func(t *testing.T) { // alone they overlap
				off := false
				alike(t, answers(t, division{ranks: 1, backend: "cuda", overlap: &off}.start(t, m.Path), m.Vocab, n, tokens), want)
			})
			t.Run("TP 2", func(t *testing.T) {
				alike(t, answers(t, division{ranks: 2, backend: "cuda"}.start(t, m.Path), m.Vocab, n, tokens), want)
			})
			t.Run("ADP 2, split MLPs", func(t *testing.T) {
				split := adp2
				split.splitMLP = true
				alike(t, answers(t, split.start(t, m.Path), m.Vocab, n, tokens), want)
			})
			t.Run("ADP 2", func(t *testing.T) { alike(t, answers(t, adp2.start(t, m.Path), m.Vocab, n, tokens), want) })
			t.Run("ctx and gen", func(t *testing.T) {
				ctx, gen := adp2, division{ranks: 1, backend: "cuda"}
				ctx.role, gen.role = executor.Ctx, executor.Gen
				from, to := ctx.start(t, m.Path), gen.start(t, m.Path)
				var got [][]request.Token
				for i, r := range requests(m.Vocab, n, tokens) {
					out, err := handOver(t.Context(), from, to, r, int64(i+1))
					if err != nil {
						t.Fatalf("request %d: %v", i, err)
					}
					got = append(got, out)
				}
				alike(t, got, want)
			})
		})
	}
}
