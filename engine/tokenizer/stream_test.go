package tokenizer

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// byteTokenizer has one token for each byte (id = byte), then "hi" (256), the
// special "<end>" (257) and the added "é" cut from text (258).
func byteTokenizer(t testing.TB) *Tokenizer {
	t.Helper()
	g := GGUF{Model: "gpt2", Pre: "gpt-2", BOS: NoToken, EOS: 257, EOT: NoToken, EOM: NoToken, UNK: NoToken}
	for b := range 256 {
		g.Tokens, g.Types = append(g.Tokens, string(byteToRune[b])), append(g.Types, 1)
	}
	g.Tokens = append(g.Tokens, "hi", "<end>", "<user>")
	g.Types = append(g.Types, 1, ggufControl, ggufUserDefined)
	g.Merges = []string{"h i"}
	tok, err := FromGGUF(g)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// fallbackTokenizer is a byte-fallback one that strips a leading space.
func fallbackTokenizer(t testing.TB) *Tokenizer {
	t.Helper()
	vocab := map[string]int{"<unk>": 0}
	for b := range 256 {
		vocab[fmt.Sprintf("<0x%02X>", b)] = b + 1
	}
	for _, s := range []string{"▁", "a", "▁a", "▁▁", "é"} {
		vocab[s] = len(vocab)
	}
	raw, err := json.Marshal(map[string]any{
		"model": map[string]any{"type": "BPE", "vocab": vocab, "merges": []string{"▁ a", "▁ ▁"}, "byte_fallback": true, "unk_token": "<unk>"},
		"decoder": map[string]any{"type": "Sequence", "decoders": []any{
			map[string]any{"type": "Replace", "pattern": map[string]any{"String": "▁"}, "content": " "},
			map[string]any{"type": "ByteFallback"},
			map[string]any{"type": "Fuse"},
			map[string]any{"type": "Strip", "content": " ", "start": 1, "stop": 0},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	tok, err := FromJSON(raw, nil)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func pushAll(s *Stream, ids []int32) (text string, parts []string) {
	for _, id := range ids {
		parts = append(parts, s.Push(id))
	}
	parts = append(parts, s.Flush())
	return strings.Join(parts, ""), parts
}

func TestStreamEqualsDecode(t *testing.T) {
	for name, tok := range map[string]*Tokenizer{"bytes": byteTokenizer(t), "fallback": fallbackTokenizer(t)} {
		t.Run(name, rapid.MakeCheck(func(t *rapid.T) {
			// Ids beyond the vocabulary and below 0 are part of the game.
			ids := rapid.SliceOfN(rapid.Int32Range(-2, int32(tok.VocabSize()+2)), 0, 30).Draw(t, "ids")
			skip := rapid.Bool().Draw(t, "skip")
			var raw strings.Builder
			for _, id := range ids {
				if !skip || !tok.IsSpecial(id) {
					raw.Write(tok.TokenBytes(id))
				}
			}
			text, parts := pushAll(tok.NewStream(nil, skip), ids)
			if text != tok.Decode(ids, skip) {
				t.Fatalf("stream %q, decode %q", text, tok.Decode(ids, skip))
			}
			for _, p := range parts {
				if !utf8.ValidString(p) {
					t.Fatalf("part %q is not valid UTF-8", p)
				}
			}
			whole := raw.String()
			if utf8.ValidString(whole) && name == "bytes" && text != whole {
				t.Fatalf("text %q, bytes %q", text, whole)
			}
			// A continuation shows exactly what the whole text has beyond its prompt.
			cut := rapid.IntRange(0, len(ids)).Draw(t, "cut")
			if head := tok.Decode(ids[:cut], false); cut > 0 && !strings.HasSuffix(head, replacement) && tok.stripLeft == 0 {
				rest, _ := pushAll(tok.NewStream(ids[:cut], false), ids[cut:])
				if all := tok.Decode(ids, false); head+rest != all {
					t.Fatalf("prompt %q + rest %q, want %q", head, rest, all)
				}
			}
		}))
	}
}

func TestStreamHoldsHalfCharacters(t *testing.T) {
	tok := byteTokenizer(t)
	ids := func(s string) (out []int32) {
		for i := range len(s) {
			out = append(out, int32(s[i]))
		}
		return out
	}
	for name, c := range map[string]struct {
		tail, text string
		want       []string // of each byte, then of Flush
	}{
		"euro":               {"", "€", []string{"", "", "€", ""}},
		"emoji, then text":   {"", "😀a", []string{"", "", "", "😀", "a", ""}},
		"cut short":          {"", "\xe2\x82", []string{"", "", "\uFFFD"}},
		"cut by text":        {"", "\xe2\x82a", []string{"", "", "\uFFFDa", ""}},
		"stray continuation": {"", "\x82\x82", []string{"\uFFFD", "\uFFFD", ""}},
		"surrogate":          {"", "\xed\xa0\x80", []string{"", "\uFFFD\uFFFD", "\uFFFD", ""}},
		"overlong":           {"", "\xc0\xaf", []string{"\uFFFD", "\uFFFD", ""}},
		"beyond the last":    {"", "\xf4\x90", []string{"", "\uFFFD\uFFFD", ""}},
		"lead after lead":    {"", "\xf0\x9f\xc3\xa9", []string{"", "", "\uFFFD", "é", ""}},
		"prompt cut short":   {"x\xe2\x82", "\xacb", []string{"€", "b", ""}},
		"prompt complete":    {"€", "b", []string{"b", ""}},
		"prompt garbage":     {"\x82", "b", []string{"b", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			_, parts := pushAll(tok.NewStream(ids(c.tail), true), ids(c.text))
			if fmt.Sprintf("%q", parts) != fmt.Sprintf("%q", c.want) {
				t.Errorf("parts %q, want %q", parts, c.want)
			}
		})
	}
}

func TestByteFallbackDecode(t *testing.T) {
	tok := fallbackTokenizer(t)
	id := func(s string) int32 {
		n, ok := tok.ID(s)
		if !ok {
			t.Fatalf("no token %q", s)
		}
		return n
	}
	euro := []int32{id("<0xE2>"), id("<0x82>"), id("<0xAC>")}
	for name, c := range map[string]struct {
		ids  []int32
		want string
	}{
		"leading space goes":      {[]int32{id("▁a"), id("▁a")}, "a a"},
		"only one of two":         {[]int32{id("▁▁"), id("a")}, " a"},
		"bytes join":              {append([]int32{id("a")}, euro...), "a€"},
		"one mark for a bad byte": {append([]int32{id("<0xE2>"), id("<0x82>")}, euro...), "\uFFFD\uFFFD€"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tok.Decode(c.ids, false); got != c.want {
				t.Errorf("Decode = %q, want %q", got, c.want)
			}
		})
	}
	if got, _ := pushAll(tok.NewStream([]int32{id("a")}, false), []int32{id("▁a")}); got != " a" {
		t.Errorf("after a prompt the space stays, got %q", got)
	}
}
