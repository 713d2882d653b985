package tokenizer

import (
	"errors"
	"strings"
	"testing"
)

// small wraps a model and more members into a tokenizer.json.
func small(members string) string {
	return `{"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}` + members + `}`
}

func TestFromJSONRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		json, config string
		is           error
		says         string
	}{
		"empty":              {"", "", ErrMalformed, "tokenizer.json"},
		"not json":           {"GGUF", "", ErrMalformed, "tokenizer.json"},
		"array":              {"[]", "", ErrMalformed, "tokenizer.json"},
		"no model":           {"{}", "", ErrMalformed, "model.vocab"},
		"unigram":            {`{"model":{"type":"Unigram","vocab":[["a",-1.5]]}}`, "", ErrUnsupported, `"Unigram"; known: BPE`},
		"word piece":         {`{"model":{"type":"WordPiece","vocab":{"a":0}}}`, "", ErrUnsupported, "WordPiece"},
		"empty vocab":        {`{"model":{"type":"BPE","vocab":{}}}`, "", ErrMalformed, "model.vocab is empty"},
		"dropout":            {`{"model":{"type":"BPE","vocab":{"a":0},"dropout":0.1}}`, "", ErrUnsupported, "dropout"},
		"suffix":             {`{"model":{"type":"BPE","vocab":{"a":0},"end_of_word_suffix":"</w>"}}`, "", ErrUnsupported, "end_of_word_suffix"},
		"unknown unk":        {`{"model":{"type":"BPE","vocab":{"a":0},"unk_token":"x"}}`, "", ErrMalformed, "unk_token"},
		"negative id":        {`{"model":{"type":"BPE","vocab":{"a":-1}}}`, "", ErrMalformed, "id -1"},
		"huge id":            {`{"model":{"type":"BPE","vocab":{"a":2000000000}}}`, "", ErrMalformed, "2000000000"},
		"sparse id":          {`{"model":{"type":"BPE","vocab":{"a":9000000}}}`, "", ErrMalformed, "only 1 tokens"},
		"id overflow":        {`{"model":{"type":"BPE","vocab":{"a":99999999999}}}`, "", ErrMalformed, "model.vocab"},
		"merge one":          {`{"model":{"type":"BPE","vocab":{"a":0},"merges":["a"]}}`, "", ErrMalformed, "merge 0"},
		"merge three":        {`{"model":{"type":"BPE","vocab":{"a":0},"merges":[["a","a","a"]]}}`, "", ErrMalformed, "merge 0 has 3"},
		"merge unknown":      {`{"model":{"type":"BPE","vocab":{"a":0},"merges":["a c"]}}`, "", ErrMalformed, `"c"`},
		"merge result":       {`{"model":{"type":"BPE","vocab":{"a":0},"merges":["a a"]}}`, "", ErrMalformed, `"aa"`},
		"merge type":         {`{"model":{"type":"BPE","vocab":{"a":0},"merges":[1]}}`, "", ErrMalformed, "model.merges"},
		"added id":           {small(`,"added_tokens":[{"id":-4,"content":"x"}]`), "", ErrMalformed, `"x"`},
		"normalizer":         {small(`,"normalizer":{"type":"Precompiled"}`), "", ErrUnsupported, "normalizer type \"Precompiled\"; known: NFC"},
		"normalizer nest":    {small(`,"normalizer":` + strings.Repeat(`{"type":"Sequence","normalizers":[`, 30) + strings.Repeat(`]}`, 30)), "", ErrMalformed, "nested"},
		"replace nothing":    {small(`,"normalizer":{"type":"Replace","pattern":{"String":""},"content":"x"}`), "", ErrMalformed, "empty pattern"},
		"replace no pattern": {small(`,"normalizer":{"type":"Replace","content":"x"}`), "", ErrMalformed, "pattern"},
		"pre-tokenizer":      {small(`,"pre_tokenizer":{"type":"UnicodeScripts"}`), "", ErrUnsupported, "pre_tokenizer type \"UnicodeScripts\"; known: ByteLevel"},
		"pre after bytes":    {small(`,"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"ByteLevel"},{"type":"Digits"}]}`), "", ErrUnsupported, "after ByteLevel"},
		"bad pattern":        {small(`,"pre_tokenizer":{"type":"Split","pattern":{"Regex":"(("},"behavior":"Isolated"}`), "", ErrMalformed, "split pattern"},
		"behavior":           {small(`,"pre_tokenizer":{"type":"Split","pattern":{"Regex":"a"},"behavior":"Odd"}`), "", ErrUnsupported, `"Odd"; known: Isolated`},
		"mark":               {small(`,"pre_tokenizer":{"type":"Metaspace","replacement":""}`), "", ErrMalformed, "replacement"},
		"decoder":            {small(`,"decoder":{"type":"CTC"}`), "", ErrUnsupported, "decoder type \"CTC\"; known: ByteLevel"},
		"strip end":          {small(`,"decoder":{"type":"Strip","content":" ","start":0,"stop":1}`), "", ErrUnsupported, "streamed"},
		"post":               {small(`,"post_processor":{"type":"Odd"}`), "", ErrUnsupported, "post_processor type \"Odd\"; known: ByteLevel"},
		"post undefined":     {small(`,"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x"}}]}`), "", ErrMalformed, `"x"`},
		"post id":            {small(`,"post_processor":{"type":"RobertaProcessing","cls":["x",77],"sep":["y",0]}`), "", ErrMalformed, "77"},
		"config":             {small(""), "[", ErrMalformed, "tokenizer_config.json"},
		"config bos":         {small(""), `{"bos_token":"x"}`, ErrMalformed, "bos_token"},
		"config eos type":    {small(""), `{"eos_token":5}`, ErrMalformed, "tokenizer_config.json"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := FromJSON([]byte(c.json), []byte(c.config))
			if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want %v that says %q", err, c.is, c.says)
			}
		})
	}
}

func TestConfigSetsSpecialTokens(t *testing.T) {
	const added = `,"added_tokens":[{"id":3,"content":"<s>","special":true},{"id":4,"content":"</s>","special":true}]`
	const post = `,"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}},{"Sequence":{"id":"A"}}],"special_tokens":{"<s>":{"id":"<s>","ids":[3],"tokens":["<s>"]}}}`
	for name, c := range map[string]struct {
		post, config string
		want         []int32
	}{
		"file says":        {post, `{"bos_token":"<s>","eos_token":"</s>"}`, []int32{3, 2}},
		"file says no":     {"", `{"bos_token":"<s>"}`, []int32{2}},
		"config adds":      {"", `{"bos_token":{"content":"<s>"},"eos_token":"</s>","add_bos_token":true,"add_eos_token":true}`, []int32{3, 2, 4}},
		"not twice":        {post, `{"bos_token":"<s>","add_bos_token":true}`, []int32{3, 2}},
		"llama removes":    {post, `{"bos_token":"<s>","add_bos_token":false,"tokenizer_class":"LlamaTokenizerFast"}`, []int32{2}},
		"others leave":     {post, `{"bos_token":"<s>","add_bos_token":false,"tokenizer_class":"PreTrainedTokenizerFast"}`, []int32{3, 2}},
		"null token":       {"", `{"bos_token":null,"add_bos_token":true}`, []int32{2}},
		"no configuration": {post, "", []int32{3, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			tok, err := FromJSON([]byte(small(added+c.post)), []byte(c.config))
			if err != nil {
				t.Fatal(err)
			}
			got, err := tok.Encode("ab", EncodeOptions{AddSpecial: true})
			if err != nil || idsDigest(got) != idsDigest(c.want) {
				t.Errorf("Encode = %v, %v, want %v", got, err, c.want)
			}
			// A rendered prompt brings its own; nothing is added twice.
			if got, _ := tok.Encode("<s>ab", EncodeOptions{}); idsDigest(got) != idsDigest([]int32{3, 2}) {
				t.Errorf("Encode of a rendered prompt = %v", got)
			}
		})
	}
}

func TestEncodeLimits(t *testing.T) {
	tok := byteTokenizer(t)
	if _, err := tok.Encode(strings.Repeat("a", MaxTextBytes+1), EncodeOptions{}); !errors.Is(err, ErrTooLong) {
		t.Errorf("error %v", err)
	}
	got, err := tok.Encode("a\xffb\xe2\x82", EncodeOptions{})
	if err != nil || tok.Decode(got, false) != "a\uFFFDb\uFFFD" {
		t.Errorf("invalid UTF-8 reads as %q, %v", tok.Decode(got, false), err)
	}
	evil, err := FromJSON([]byte(small(`,"pre_tokenizer":{"type":"Split","pattern":{"Regex":"(?:(?:a|b|ab)*)*c"},"behavior":"Isolated"}`)), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := evil.Encode(strings.Repeat("ab", 1<<20), EncodeOptions{}); !errors.Is(err, ErrPattern) {
		t.Errorf("error %v, want ErrPattern", err)
	}
}

func FuzzFromJSON(f *testing.F) {
	f.Add(small(`,"added_tokens":[{"id":3,"content":"<s>","special":true}],"normalizer":{"type":"NFC"}`), `{"bos_token":"<s>"}`, "ab <s>")
	f.Add(small(`,"pre_tokenizer":{"type":"ByteLevel"},"decoder":{"type":"ByteLevel"}`), ``, "abba")
	f.Add(small(`,"pre_tokenizer":{"type":"Metaspace","replacement":"▁","prepend_scheme":"first"}`), ``, " a b")
	f.Fuzz(func(t *testing.T, file, config, text string) {
		tok, err := FromJSON([]byte(file), []byte(config))
		if err != nil {
			if !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrUnsupported) {
				t.Fatalf("error %v is neither ErrMalformed nor ErrUnsupported", err)
			}
			return
		}
		if len(file) > 400 {
			return // patterns of a hostile file may be slow, which is not a crash
		}
		ids, err := tok.Encode(text[:min(len(text), 64)], EncodeOptions{AddSpecial: true})
		if err != nil {
			return
		}
		for _, id := range ids {
			if !tok.known(id) {
				t.Fatalf("id %d of %d", id, tok.VocabSize())
			}
		}
		if got, _ := pushAll(tok.NewStream(nil, true), ids); got != tok.Decode(ids, true) {
			t.Fatal("stream and decode differ")
		}
	})
}
