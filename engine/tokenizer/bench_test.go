package tokenizer

import (
	"strings"
	"testing"
)

const prose = "The engine splits a request over two workers: one reads the prompt, the other writes the answer.\n" +
	"It's 2026, and they've moved 1,234 blocks of 16 tokens each - that isn't much.\n\n" +
	"func main() {\n\tfmt.Println(\"hello, world\") // naïve café\n}\n"

// unique returns text whose words rarely repeat, so that the cache cannot help.
func unique(n int) string {
	var b strings.Builder
	x := uint32(1)
	for b.Len() < n {
		for range 3 + x%9 {
			x = x*1664525 + 1013904223
			b.WriteByte('a' + byte(x>>24)%26)
		}
		b.WriteByte(' ')
	}
	return b.String()
}

func benchmarkEncode(b *testing.B, tok *Tokenizer, text string) {
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := tok.Encode(text, EncodeOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	tok, err := FromGGUF(defaultModel(b))
	if err != nil {
		b.Fatal(err)
	}
	b.Run("short", func(b *testing.B) { benchmarkEncode(b, tok, "What is the capital of France?") })
	b.Run("prose", func(b *testing.B) { benchmarkEncode(b, tok, strings.Repeat(prose, 64)) })
	b.Run("unique", func(b *testing.B) { benchmarkEncode(b, tok, unique(16<<10)) })
	b.Run("one word", func(b *testing.B) { benchmarkEncode(b, tok, strings.Repeat("abcdefgh", 2<<10)) })
}

func BenchmarkEncodeVendor(b *testing.B) {
	for _, name := range []string{"qwen3", "deepseek_v3", "llama2"} {
		b.Run(name, func(b *testing.B) {
			raw, cfg := vendorFiles(b, name)
			tok, err := FromJSON(raw, cfg)
			if err != nil {
				b.Fatal(err)
			}
			benchmarkEncode(b, tok, strings.Repeat(prose, 64))
		})
	}
}

func BenchmarkLoad(b *testing.B) {
	b.Run("default", func(b *testing.B) {
		g := defaultModel(b)
		for b.Loop() {
			if _, err := FromGGUF(g); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("gemma3", func(b *testing.B) {
		raw, cfg := vendorFiles(b, "gemma3")
		for b.Loop() {
			if _, err := FromJSON(raw, cfg); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkStreamPush(b *testing.B) {
	tok, err := FromGGUF(defaultModel(b))
	if err != nil {
		b.Fatal(err)
	}
	ids, err := tok.Encode(strings.Repeat(prose, 8), EncodeOptions{})
	if err != nil {
		b.Fatal(err)
	}
	s := tok.NewStream(nil, true)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		s.Push(ids[i%len(ids)])
	}
}
