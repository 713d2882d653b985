//go:build cuda

package tinymodel

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"tandem/engine/cuda"
	"tandem/engine/model"
	"tandem/engine/pass"
	"tandem/engine/tensor"
)

// speaker is a sequence that is decoded for a while, beside others.
type speaker struct {
	tokens []int32 // those that the host knows
	done   int     // computed
	pages  []int32
	pick   tensor.Pick
	host   bool // the host chooses in every third step
}

func speakers(ck *model.Checkpoint, seed uint64, block int) (all []*speaker) {
	random := rand.New(rand.NewPCG(seed, 9))
	for i := range 5 {
		s := &speaker{host: seed%3 == 0 && i == 2}
		for range 1 + random.IntN(40) {
			s.tokens = append(s.tokens, int32(random.IntN(ck.Config.Vocab)))
		}
		p := someSampling(random)
		s.pick = tensor.Pick{
			Temperature: p.Temperature, TopP: p.TopP, MinP: p.MinP, TopK: p.TopK, Seed: p.Seed, Stream: p.Stream, Logprobs: p.Logprobs,
		}
		for j := range 80/block + 1 {
			s.pages = append(s.pages, int32(i*(80/block+1)+j))
		}
		all = append(all, s)
	}
	return all
}

// parts is one step: the batch, who has a row of logits in it, and the rules.
type parts struct {
	batch tensor.Batch
	rows  []*speaker
	picks []tensor.Pick
}

// next makes the step after before, whose tokens are not known if it still runs.
func next(all []*speaker, number int, before *parts, runs bool) *parts {
	p := &parts{}
	p.batch.Reset()
	for i, s := range all {
		n := min(len(s.tokens)-s.done, 7+i) // prompts come in chunks
		fed := runs && n == 0
		tokens := []int32{0}
		if !fed {
			tokens = s.tokens[s.done : s.done+n]
		}
		logits := fed || s.done+n == len(s.tokens)
		p.batch.Add(tokens, s.done, s.pages, logits)
		for range tokens {
			from := int32(-1)
			for j, q := range before.rows {
				if fed && q == s {
					from = int32(j)
				}
			}
			p.batch.Feed = append(p.batch.Feed, from)
		}
		s.done += len(tokens)
		if logits {
			pick := s.pick
			pick.Index, pick.Host = uint64(number), s.host && number%3 == 2
			p.rows, p.picks = append(p.rows, s), append(p.picks, pick)
		}
	}
	if !runs {
		p.batch.Feed = nil
	}
	return p
}

// take gives the tokens of a step to their sequences, and tells all of it.
func (p *parts) take(picked []tensor.Picked, logits []float32, vocab int) (told string) {
	for i, s := range p.rows {
		token := picked[i].Token
		if p.picks[i].Host {
			token = 0
			for j, l := range logits[:vocab] {
				if l > logits[token] {
					token = int32(j)
				}
			}
			told += fmt.Sprint(logits[:3])
			logits = logits[vocab:]
		}
		s.tokens = append(s.tokens, token)
		told += fmt.Sprintf("%d: %+v; ", token, picked[i])
	}
	return told
}

// Steps that are launched before the host knows the tokens of those before give
// what steps in turn give, to the last bit: with tokens taken over on the device,
// chunks of prompts beside them, and copies of blocks in between.
func TestCUDALaunchesAsItRuns(t *testing.T) {
	m, err := Get("qwen3")
	if err != nil {
		t.Fatal(err)
	}
	ck, err := model.Open(m.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	kv := KVShape(ck, 48, tensor.BF16)
	b := openCUDA(t, ck, kv).(cudaRunner).b
	const steps = 16
	for seed := range uint64(4) {
		var want, got []string
		all := speakers(ck, seed, kv.BlockTokens)
		for i := range steps {
			p := next(all, i, new(parts), false)
			move(t, b, all[0], i, kv.BlockTokens)
			picked, logits, err := b.RunPick(&p.batch, p.picks)
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, p.take(picked, logits, ck.Config.Vocab))
		}
		all = speakers(ck, seed, kv.BlockTokens)
		before := new(parts)
		wait := func(p *parts) {
			picked, logits, err := b.Wait()
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, p.take(picked, logits, ck.Config.Vocab))
		}
		runs := false
		for i := range steps {
			p := next(all, i, before, runs)
			move(t, b, all[0], i, kv.BlockTokens)
			if err := b.Launch(&p.batch, p.picks); err != nil {
				t.Fatal(err)
			}
			for j := range p.batch.Tokens { // the batch is the caller's again
				p.batch.Tokens[j], p.picks = 1, append([]tensor.Pick(nil), p.picks...)
			}
			if runs {
				wait(before)
			}
			runs = true
			for _, k := range p.picks {
				runs = runs && !k.Host
			}
			if before = p; !runs {
				wait(p)
			}
		}
		if runs {
			wait(before)
		}
		for i := range want {
			if got[i] != want[i] {
				t.Fatalf("seed %d, step %d:\n%s, want\n%s", seed, i, got[i], want[i])
			}
		}
	}
}

// move gives a sequence another first block, behind the steps that still use the
// old one, which then is another's content.
func move(t *testing.T, b *cuda.Backend, s *speaker, number, block int) {
	t.Helper()
	if number%5 != 4 || s.done < block {
		return
	}
	old, fresh := s.pages[0], int32(40+number/5%4)
	if err := b.CopyBlockPrefix(old, fresh, block); err != nil {
		t.Fatal(err)
	}
	s.pages = append([]int32{fresh}, s.pages[1:]...)
	if err := b.CopyBlockPrefix(39, old, block); err != nil {
		t.Fatal(err)
	}
}

func TestCUDARefusesLaunches(t *testing.T) {
	m, err := Get("qwen3")
	if err != nil {
		t.Fatal(err)
	}
	ck, err := model.Open(m.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	b := openCUDA(t, ck, KVShape(ck, 16, tensor.BF16)).(cudaRunner).b
	var batch tensor.Batch
	greedy := []tensor.Pick{{TopP: 1, Logprobs: -1}}
	one := func(feed ...int32) *tensor.Batch {
		batch.Reset()
		batch.Add([]int32{5}, 0, []int32{0}, true)
		batch.Feed = append(batch.Feed, feed...)
		return &batch
	}
	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, pass.ErrBatch) {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused("a token of no step", b.Launch(one(0), greedy))
	refused("no rules", b.Launch(one(), nil))
	refused("feed of other rows", b.Launch(one(-1, -1), greedy))
	if _, _, err := b.Wait(); err == nil {
		t.Error("waited for nothing")
	}
	if err := errors.Join(b.Launch(one(), greedy), b.Launch(one(0), greedy)); err != nil {
		t.Fatal(err)
	}
	refused("a third step", b.Launch(one(), greedy))
	refused("a token of a row that is not there", b.Launch(one(1), greedy))
	for range 2 {
		if _, _, err := b.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Launch(one(), []tensor.Pick{{Host: true}}); err != nil {
		t.Fatal(err)
	}
	refused("a step behind one of the host's", b.Launch(one(), greedy))
	if _, logits, err := b.Wait(); err != nil || len(logits) != ck.Config.Vocab {
		t.Errorf("%d logits, %v", len(logits), err)
	}
}
