package tokenizer

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

func smallGGUF() GGUF {
	return GGUF{
		Model: "gpt2", Pre: "llama-bpe",
		Tokens: []string{"a", "b", "ab", "<s>", "</s>", "<|eot_id|>", "Ġ"}, Types: []int32{1, 1, 1, 3, 3, 3, 1},
		Merges: []string{"a b"}, BOS: 3, EOS: 4, EOT: NoToken, EOM: NoToken, UNK: NoToken,
	}
}

func TestFromGGUFRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*GGUF)
		is     error
		says   string
	}{
		"model":       {func(g *GGUF) { g.Model = "t5" }, ErrUnsupported, `"t5"; known: gpt2, llama`},
		"pre":         {func(g *GGUF) { g.Pre = "odd" }, ErrUnsupported, `"odd"; known: chatglm-bpe, `},
		"no tokens":   {func(g *GGUF) { g.Tokens, g.Types = nil, nil }, ErrMalformed, "tokens"},
		"types":       {func(g *GGUF) { g.Types = g.Types[:2] }, ErrMalformed, "token_type has 2 entries for 7"},
		"scores":      {func(g *GGUF) { g.Scores = []float32{1} }, ErrMalformed, "scores"},
		"no scores":   {func(g *GGUF) { g.Model = "llama" }, ErrMalformed, "scores is missing"},
		"bos":         {func(g *GGUF) { g.BOS = 7 }, ErrMalformed, "bos_token_id is 7"},
		"eot":         {func(g *GGUF) { g.EOT = -5 }, ErrMalformed, "eot_token_id is -5"},
		"merge":       {func(g *GGUF) { g.Merges = []string{"ab"} }, ErrMalformed, "merge 0"},
		"merge token": {func(g *GGUF) { g.Merges = []string{"a z"} }, ErrMalformed, `"z"`},
	} {
		t.Run(name, func(t *testing.T) {
			g := smallGGUF()
			c.change(&g)
			if _, err := FromGGUF(g); !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want %v that says %q", err, c.is, c.says)
			}
		})
	}
}

func TestGGUFSpecialTokens(t *testing.T) {
	yes, no := true, false
	for name, c := range map[string]struct {
		change func(*GGUF)
		want   []int32
	}{
		"family adds bos": {func(*GGUF) {}, []int32{3, 2}},
		"file says no":    {func(g *GGUF) { g.AddBOS = &no }, []int32{2}},
		"other family":    {func(g *GGUF) { g.Pre = "qwen2" }, []int32{2}},
		"both":            {func(g *GGUF) { g.AddBOS, g.AddEOS = &yes, &yes }, []int32{3, 2, 4}},
		"no bos token":    {func(g *GGUF) { g.AddBOS, g.BOS = &yes, NoToken }, []int32{2}},
		"space prefix":    {func(g *GGUF) { g.AddSpacePrefix, g.AddBOS = &yes, &no }, []int32{6, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			g := smallGGUF()
			c.change(&g)
			tok, err := FromGGUF(g)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := tok.Encode("ab", EncodeOptions{AddSpecial: true}); err != nil || !slices.Equal(got, c.want) {
				t.Errorf("Encode = %v, %v, want %v", got, err, c.want)
			}
			if got := tok.EOS(); !slices.Equal(got, []int32{4, 5}) {
				t.Errorf("EOS() = %v", got)
			}
		})
	}
}

// Padded vocabularies repeat spellings; each id keeps its text and kind, and the
// first is the one that text becomes.
func TestGGUFRepeatedSpellings(t *testing.T) {
	g := smallGGUF()
	g.Tokens, g.Types = append(g.Tokens, "a", "<s>", ""), append(g.Types, 1, 3, 1)
	tok, err := FromGGUF(g)
	if err != nil {
		t.Fatal(err)
	}
	got, err := tok.Encode("<s>a", EncodeOptions{})
	if err != nil || !slices.Equal(got, []int32{3, 0}) {
		t.Errorf("Encode = %v, %v", got, err)
	}
	if tok.VocabSize() != 10 || tok.Decode([]int32{7, 8, 9, 10}, false) != "a<s>" || tok.Decode([]int32{7, 8}, true) != "a" {
		t.Errorf("ids of repeated spellings decode to %q", tok.Decode([]int32{7, 8, 9, 10}, false))
	}
}

// Every pattern compiles, and every text is cut without loss.
func TestGGUFPresCutWithoutLoss(t *testing.T) {
	texts := trickyStrings(t)
	for _, name := range knownPres() {
		pre, err := findPre(name)
		if err != nil {
			t.Fatal(err)
		}
		splitters, err := pre.splitters()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if name != pre.names[0] {
			continue
		}
		sc := getScratch()
		for _, text := range texts[:400] {
			pieces := []string{text}
			for _, s := range splitters {
				var next []string
				for _, p := range pieces {
					if next, err = s.split(next, p, false, sc); err != nil {
						t.Fatal(err)
					}
				}
				pieces = next
			}
			if strings.Join(pieces, "") != text {
				t.Fatalf("%s: %q is cut into %q", name, text, pieces)
			}
		}
	}
}

// Long runs that make patterns backtrack must not take quadratic time: at these
// lengths that would be minutes.
func TestPatternsAreLinearInLongRuns(t *testing.T) {
	for _, name := range []string{"smollm", "llama-bpe", "gpt-4o", "deepseek-v3"} {
		pre, err := findPre(name)
		if err != nil {
			t.Fatal(err)
		}
		splitters, err := pre.splitters()
		if err != nil {
			t.Fatal(err)
		}
		start, sc := time.Now(), new(scratch)
		for _, run := range []string{" ", "\n", " \n", "A", "aA", "1", "!", "\u0301", "'"} {
			pieces := []string{strings.Repeat(run, 100_000/len(run)) + "x"}
			for _, s := range splitters {
				var next []string
				for _, p := range pieces {
					if next, err = s.split(next, p, false, sc); err != nil {
						t.Fatalf("%s on %q: %v", name, run, err)
					}
				}
				pieces = next
			}
		}
		if took := time.Since(start); took > 30*time.Second {
			t.Errorf("%s took %v", name, took)
		}
	}
}

// A llama model merges by score: llama2's own file and its vocabulary read as
// GGUF give the same ids.
func TestSentencePieceEqualsConvertedFile(t *testing.T) {
	raw, _ := vendorFiles(t, "llama2")
	want, err := FromJSON(raw, nil)
	if err != nil {
		t.Fatal(err)
	}
	g := GGUF{Model: "llama", BOS: 1, EOS: 2, EOT: NoToken, EOM: NoToken, UNK: 0}
	rank := map[int32]int32{} // of the first merge that makes a token: its score, negated
	for _, m := range want.model.merges {
		if old, ok := rank[m.id]; !ok || m.rank < old {
			rank[m.id] = m.rank
		}
	}
	for id, s := range want.tokens {
		kind, score := int32(1), -float32(rank[int32(id)])
		switch {
		case id == 0:
			kind = ggufUnknown
		case id < 3:
			kind = ggufControl
		case id < 259:
			kind, score = 6, 0
		}
		g.Tokens, g.Types, g.Scores = append(g.Tokens, s), append(g.Types, kind), append(g.Scores, score)
	}
	got, err := FromGGUF(g)
	if err != nil {
		t.Fatal(err)
	}
	var differ int
	for _, s := range trickyStrings(t) {
		a, _ := want.Encode(s, EncodeOptions{AddSpecial: true})
		b, _ := got.Encode(s, EncodeOptions{AddSpecial: true})
		if !slices.Equal(a, b) {
			if differ++; differ < 6 {
				t.Errorf("%.60q: %q, want %q", s, spell(got, b), spell(want, a))
			}
		}
		if x, y := want.Decode(a, true), got.Decode(a, true); x != y {
			t.Errorf("%.60q decodes to %.60q, want %.60q", s, y, x)
		}
	}
}

func FuzzFromGGUF(f *testing.F) {
	f.Add("gpt2", "smollm", "a b ab <s>", "\x01\x01\x01\x03", "a b", int32(0), "ab")
	f.Add("llama", "", "a b ab <s>", "\x01\x01\x01\x03", "", int32(3), "ab")
	f.Fuzz(func(t *testing.T, model, pre, tokens, types, merges string, id int32, text string) {
		g := GGUF{Model: model, Pre: pre, BOS: id, EOS: NoToken, EOT: NoToken, EOM: NoToken, UNK: NoToken}
		g.Tokens = strings.Split(tokens, " ")
		for _, c := range types {
			g.Types = append(g.Types, c)
		}
		for i := range g.Tokens {
			g.Scores = append(g.Scores, float32(i%7))
		}
		if merges != "" {
			g.Merges = strings.Split(merges, ",")
		}
		tok, err := FromGGUF(g)
		if err != nil {
			if !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrUnsupported) {
				t.Fatalf("error %v is neither ErrMalformed nor ErrUnsupported", err)
			}
			return
		}
		ids, err := tok.Encode(text[:min(len(text), 200)], EncodeOptions{AddSpecial: true})
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := pushAll(tok.NewStream(nil, true), ids); got != tok.Decode(ids, true) {
			t.Fatal("stream and decode differ")
		}
	})
}
