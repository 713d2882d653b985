package tokenizer

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// naiveMerge rescans the whole word for each merge.
func (m *bpe) naiveMerge(ids []int32) []int32 {
	for {
		best, at := merge{rank: 1<<31 - 1}, -1
		for i := range len(ids) - 1 {
			if p, ok := m.merges[pairKey(ids[i], ids[i+1])]; ok && p.rank < best.rank {
				best, at = p, i
			}
		}
		if at < 0 {
			return ids
		}
		ids = slices.Delete(ids, at+1, at+2)
		ids[at] = best.id
	}
}

func TestMergesEqualNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &bpe{merges: map[uint64]merge{}}
		for rank := range rapid.IntRange(0, 30).Draw(t, "rules") {
			// Mostly pairs of what is there at the start, so that rules do apply.
			top := rapid.SampledFrom([]int32{1, 1, 3, int32(rank + 3)}).Draw(t, "top")
			l, r := rapid.Int32Range(0, top).Draw(t, "l"), rapid.Int32Range(0, top).Draw(t, "r")
			if _, ok := m.merges[pairKey(l, r)]; !ok {
				m.merges[pairKey(l, r)] = merge{rank: int32(rank / 2), id: int32(rank + 4)}
			}
		}
		ids := rapid.SliceOfN(rapid.SampledFrom([]int32{0, 0, 1, 1, 2, 3}), 0, 60).Draw(t, "ids")
		want := m.naiveMerge(slices.Clone(ids))
		byHeap := slices.Clone(ids)
		if len(ids) > 0 {
			byHeap = byHeap[:m.mergeByHeap(byHeap, new(scratch))]
		}
		if !slices.Equal(byHeap, want) {
			t.Fatalf("heap gives %v, want %v", byHeap, want)
		}
		if len(ids) <= 24 {
			if byScan := slices.Clone(ids); !slices.Equal(byScan[:m.mergeByScan(byScan)], want) {
				t.Fatalf("scan gives %v, want %v", byScan, want)
			}
		}
	})
}

// A word as long as a prompt must not take quadratic time.
func TestLongWordsAreNotQuadratic(t *testing.T) {
	tok, err := FromGGUF(defaultModel(t))
	if err != nil {
		t.Fatal(err)
	}
	word := strings.Repeat("thequickbrownfox", 1<<18/16)
	start := time.Now()
	ids, err := tok.Encode(word, EncodeOptions{})
	if err != nil || tok.Decode(ids, false) != word {
		t.Fatalf("%d ids, %v", len(ids), err)
	}
	if took := time.Since(start); took > 25*time.Second {
		t.Errorf("256 KiB word took %v", took)
	}
}

func TestTokenizerIsSafeForConcurrentUse(t *testing.T) {
	tok, err := FromGGUF(defaultModel(t))
	if err != nil {
		t.Fatal(err)
	}
	texts := trickyStrings(t)[:600]
	var want [][]int32
	for _, s := range texts {
		ids, err := tok.Encode(s, EncodeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, ids)
	}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range texts {
				i = (i*7 + g*131) % len(texts)
				if got, err := tok.Encode(texts[i], EncodeOptions{}); err != nil || !slices.Equal(got, want[i]) {
					t.Errorf("%.40q: %v, %v", texts[i], got, err)
				}
			}
		})
	}
	wg.Wait()
}

func TestWordCacheIsBounded(t *testing.T) {
	c := newWordCache()
	for i := range 200_000 {
		word := string(rune('a'+i%26)) + string(rune(0x4e00+i%20000)) + string(rune(0x4e00+i/20000))
		c.put(word, []int32{int32(i)})
		if ids, ok := c.get(word); !ok || ids[0] != int32(i) {
			t.Fatalf("word %d is lost", i)
		}
	}
	n := 0
	for i := range c.shards {
		n += len(c.shards[i].young) + len(c.shards[i].old)
	}
	if n > 2*cacheShards*shardEntries {
		t.Errorf("%d words are kept", n)
	}
}

func TestLookups(t *testing.T) {
	tok := byteTokenizer(t)
	if id, ok := tok.ID("hi"); !ok || id != 256 {
		t.Errorf("ID(hi) = %d, %v", id, ok)
	}
	if _, ok := tok.ID("nope"); ok {
		t.Error("ID(nope) is known")
	}
	if tok.VocabSize() != 259 || tok.Token(257) != "<end>" || tok.Token(-1) != "" || tok.Token(300) != "" {
		t.Error("VocabSize or Token is wrong")
	}
	if string(tok.TokenBytes(0xe2)) != "\xe2" || tok.TokenBytes(-1) != nil || tok.TokenBytes(259) != nil {
		t.Error("TokenBytes is wrong")
	}
	if !tok.IsSpecial(257) || tok.IsSpecial(258) || tok.IsSpecial(900) {
		t.Error("IsSpecial is wrong")
	}
	tok.EOS()[0] = 9
	if tok.EOS()[0] != 257 {
		t.Error("EOS() hands out its own slice")
	}
	if got := tok.Decode([]int32{'a', 257, 258, -1, 999}, true); got != "a<user>" {
		t.Errorf("Decode = %q", got)
	}
}
