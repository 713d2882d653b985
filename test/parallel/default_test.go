package parallel

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"tandem/engine/cpu"
	"tandem/engine/hub"
	"tandem/engine/model"
	"tandem/engine/tensor"
	"tandem/test/tinymodel"
)

// prompts are of words that are tokens of the default model.
var prompts = []string{
	"The capital of France is",
	"Once upon a time there was a little girl who lived in the forest with her mother and",
	"Water is",
}

const generated = 12

// The default model goes on alike on every division: same bits, so same tokens.
func TestDefaultModelRanks(t *testing.T) {
	path, err := hub.Locate(hub.DefaultModel)
	if errors.Is(err, hub.ErrNotPulled) {
		t.Skip("the default model is not in the cache; `make test` fetches it")
	}
	if err != nil {
		t.Fatal(err)
	}
	ck, err := model.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ck.Close() })
	store := cpu.NewStore()
	t.Cleanup(func() { _ = store.Close() })
	kv := tinymodel.KVShape(ck, 16, tensor.BF16)
	alone := &world{devices: []tinymodel.Backend{openCPU("", store)(t, ck, kv, model.Parallel{}, nil)}}
	start := tokens(t, ck)
	want, ids := alone.generate(t, start, []int{0, 0, 0})
	var text strings.Builder
	for _, id := range ids[0] {
		text.WriteString(ck.Tokenizer.Tokens[id])
	}
	if !strings.HasPrefix(text.String(), "ĠParis") {
		t.Errorf("the capital of France is %q", text.String())
	}
	for _, m := range []mode{tp(2), tp(4), adp(2), adp(4), attentionDP(2, true), tp(3).over(1), attentionDP(2, true).over(1)} {
		t.Run(m.name, func(t *testing.T) {
			got, gotIDs := newWorld(t, ck, m, kv, openCPU("", store)).generate(t, start, []int{0, 3, 1})
			for i := range want {
				if !slices.Equal(gotIDs[i], ids[i]) {
					t.Errorf("prompt %d goes on with %v, on one rank with %v", i, gotIDs[i], ids[i])
				} else if err := same(got[i], want[i]); err != nil {
					t.Errorf("prompt %d: %v", i, err)
				}
			}
		})
	}
}

func tokens(t *testing.T, ck *model.Checkpoint) (out [][]int32) {
	t.Helper()
	for _, text := range prompts {
		var ids []int32
		for i, word := range strings.Fields(text) {
			if i > 0 {
				word = "Ġ" + word
			}
			id := slices.Index(ck.Tokenizer.Tokens, word)
			if id < 0 {
				t.Fatalf("%q is no token", word)
			}
			ids = append(ids, int32(id))
		}
		out = append(out, ids)
	}
	return out
}

// generate returns the logits that each prompt's likeliest tokens were chosen
// from, and these.
func (w *world) generate(t *testing.T, start [][]int32, place []int) (logits [][][]float32, ids [][]int32) {
	t.Helper()
	logits, ids = make([][][]float32, len(start)), make([][]int32, len(start))
	for n := range generated {
		batches, owner := w.next(start, ids, place)
		got, err := w.step(batches)
		if err != nil {
			t.Fatal(err)
		}
		for r := range got {
			for row, i := range owner[r] {
				if len(logits[i]) > n { // another rank of a tensor parallel group
					if err := same([][]float32{got[r][row]}, logits[i][n:]); err != nil {
						t.Fatalf("rank %d, prompt %d, token %d: %v", r, i, n, err)
					}
					continue
				}
				logits[i] = append(logits[i], got[r][row])
				ids[i] = append(ids[i], int32(slices.Index(got[r][row], slices.Max(got[r][row]))))
			}
		}
	}
	return logits, ids
}

// next makes the batch of each rank, and tells the prompts in it.
func (w *world) next(start, ids [][]int32, place []int) (batches []*tensor.Batch, owner [][]int) {
	owner = make([][]int, len(w.devices))
	for r := range w.devices {
		b := &tensor.Batch{}
		b.Reset()
		for i, prompt := range start {
			if w.p.AttentionDP && place[i]%len(w.devices) != r {
				continue
			}
			pages := []int32{int32(3 * i), int32(3*i + 1), int32(3*i + 2)}
			if n := len(ids[i]); n > 0 {
				b.Add(ids[i][n-1:], len(prompt)+n-1, pages, true)
			} else {
				b.Add(prompt, 0, pages, true)
			}
			owner[r] = append(owner[r], i)
		}
		batches = append(batches, b)
	}
	return batches, owner
}
