package blockhash

import (
	"encoding/hex"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// The vectors of engine-core §7: namespace m0, tokens 1..12, 4 tokens a block.
func TestVectors(t *testing.T) {
	for _, tc := range []struct {
		name, lora, salt string
		want             [4]string
	}{
		{"plain", "", "", [4]string{
			"7a34b019b38e9ef272e33bf8b1d39f9b", "1151cd089da7987bcb054b3ae30c0a1b",
			"9fcc283874ae670506fffd5b5308cb40", "6124000024c1b379faedd5fa748df7da",
		}},
		{"salt", "", "tenant-a", [4]string{
			"1b692ca444cde872c1077c11f21f5ec7", "2ee8091486ee323d4e490c0e4be8889e",
			"69e01a5913ae4246a8271de87b1b1f00", "624dc61e90bc9d1b55be1a6739c7eda6",
		}},
		{"lora", "tenant-a", "", [4]string{
			"d3e8b03ced6fcc354d09f5c00fb2ca32", "ed67ad2386e1fdad0cda23d9a5ca91fc",
			"178c09f3f0bbcf1ac3d5ab0d221157e4", "106c25595d15303b96f3ca57cdb36673",
		}},
		{"lora and salt", "ad1@3", "tenant-a", [4]string{
			"516a3575b687becd6570e22fafb59295", "6edfa855f33957dd3ef0e26430d42ba6",
			"451c2e89486088fd3ae2a3280c499136", "9e06e02f5c7ecf0f4282d8d3c261fd6b",
		}},
	} {
		h := Root("m0", tc.lora, tc.salt)
		for i, want := range tc.want {
			if i > 0 {
				first := int32(i-1)*4 + 1
				h = Next(h, []int32{first, first + 1, first + 2, first + 3})
			}
			if got := hex.EncodeToString(h[:]); got != want {
				t.Errorf("%s: hash %d is %s, want %s", tc.name, i, got, want)
			}
			if tc.name == "plain" && i == 1 && h.Wire() != 8906052556024533265 {
				t.Errorf("wire id %d", h.Wire())
			}
		}
	}
}

func TestRootsAreApart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[ab]{0,2}`)
		a := [3]string{word.Draw(t, "ns"), word.Draw(t, "lora"), word.Draw(t, "salt")}
		b := [3]string{word.Draw(t, "ns2"), word.Draw(t, "lora2"), word.Draw(t, "salt2")}
		if same := Root(a[0], a[1], a[2]) == Root(b[0], b[1], b[2]); same != (a == b) {
			t.Fatalf("%q and %q: same root %v", a, b, same)
		}
	})
}

func TestNextDoesNotAllocate(t *testing.T) {
	tokens := make([]int32, 32)
	h := Root("m0", "", "")
	if n := testing.AllocsPerRun(100, func() { h = Next(h, tokens) }); n != 0 {
		t.Errorf("%v allocations a block", n)
	}
}

// TestScenario10RootsShareNothing hashes 1,000 random prompts under four roots:
// no block of one is a block of another.
func TestScenario10RootsShareNothing(t *testing.T) {
	roots := []Hash{Root("m0", "", ""), Root("m0", "", "a"), Root("m0", "a@1", ""), Root("m0", "a@2", "")}
	rng, seen := rand.New(rand.NewPCG(10, 0)), map[Hash]int{}
	for range 1000 {
		prompt := make([]int32, 4*(1+rng.IntN(6)))
		for i := range prompt {
			prompt[i] = rng.Int32N(3) // so that many have common beginnings
		}
		for r, h := range roots {
			for i := 0; i < len(prompt); i += 4 {
				h = Next(h, prompt[i:i+4])
				if other, ok := seen[h]; ok && other != r {
					t.Fatalf("the roots %d and %d share a block", other, r)
				}
				seen[h] = r
			}
		}
	}
}

func BenchmarkNext32(b *testing.B) {
	tokens := make([]int32, 32)
	h := Root("m0", "", "")
	b.ReportAllocs()
	for b.Loop() {
		h = Next(h, tokens)
	}
}

// BenchmarkPrompt131072 hashes a prompt of that length in blocks of 32.
func BenchmarkPrompt131072(b *testing.B) {
	prompt := make([]int32, 131072)
	for i := range prompt {
		prompt[i] = int32(i * 31 % 50000)
	}
	root := Root("m0", "", "")
	b.ReportAllocs()
	for b.Loop() {
		h := root
		for i := 0; i < len(prompt); i += 32 {
			h = Next(h, prompt[i:i+32])
		}
	}
}
