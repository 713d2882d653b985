package tokenizer

import (
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"tandem/engine/model/gguf"
)

// Fixtures come from test/fixtures/tokenizer; its scripts say how.

var vendors = []string{"qwen3", "llama3", "llama3_1", "deepseek_v3", "gptoss", "llama2", "gemma3"}

type idFixture struct {
	Vocab  int      `json:"vocab"`
	Hello  []int32  `json:"hello"`  // ids of "Hello" with the tokens added around it
	Rows   []string `json:"rows"`   // per string: hash of ids, of ids with plain specials, of decoded text
	Random []string `json:"random"` // per random id list: hash of text without and with specials
}

func readGzip(t testing.TB, path string, into any) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.NewDecoder(z).Decode(into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])[:12]
}

func idsDigest(ids []int32) string {
	raw := []byte{}
	for _, id := range ids {
		raw = binary.LittleEndian.AppendUint32(raw, uint32(id))
	}
	return digest(raw)
}

// randomIDs repeats the generator of fixture.py.
func randomIDs(count, size, vocab int) [][]int32 {
	x := uint64(12345)
	out := make([][]int32, count)
	for i := range out {
		for range 1 + i%size {
			x = (x*1103515245 + 12345) & 0x7fffffff
			out[i] = append(out[i], int32((x>>4)%uint64(vocab)))
		}
	}
	return out
}

// vendorFiles returns the two files of a published tokenizer, or skips.
func vendorFiles(t testing.TB, name string) (tokenizerJSON, configJSON []byte) {
	t.Helper()
	dir := os.Getenv("TANDEM_VENDOR_TOKENIZERS")
	if dir == "" {
		dir = filepath.Join("..", "..", ".cache", "vendor-tokenizers")
	}
	tokenizerJSON, err := os.ReadFile(filepath.Join(dir, name, "tokenizer.json"))
	if os.IsNotExist(err) {
		t.Skipf("no tokenizer files of %s; test/fixtures/tokenizer/fetch_vendor.sh fetches them", name)
	}
	if err != nil {
		t.Fatal(err)
	}
	configJSON, err = os.ReadFile(filepath.Join(dir, name, "tokenizer_config.json"))
	if err != nil {
		t.Fatal(err)
	}
	return tokenizerJSON, configJSON
}

// defaultModel returns the tokenizer metadata of the default model, or skips.
func defaultModel(t testing.TB) GGUF {
	t.Helper()
	home := os.Getenv("TANDEM_HOME")
	if home == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			t.Skipf("no cache folder: %v", err)
		}
		home = filepath.Join(cache, "tandem")
	}
	path := filepath.Join(home, "models", "smollm2-135m-instruct", "SmolLM2-135M-Instruct.Q4_1.gguf")
	data, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		t.Skip("the default model is not in the cache; `make test` fetches it")
	}
	if err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	return fromMetadata(t, f)
}

func fromMetadata(t testing.TB, f *gguf.File) GGUF {
	t.Helper()
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	const p = "tokenizer.ggml."
	g := GGUF{BOS: NoToken, EOS: NoToken, EOT: NoToken, EOM: NoToken, UNK: NoToken}
	var err error
	g.Model, err = f.String(p + "model")
	must(err)
	g.Pre, err = f.String(p + "pre")
	must(err)
	g.Tokens, err = f.Strings(p + "tokens")
	must(err)
	g.Merges, err = f.Strings(p + "merges")
	must(err)
	types, err := f.Ints(p + "token_type")
	must(err)
	for _, k := range types {
		g.Types = append(g.Types, int32(k))
	}
	id, err := f.Int(p + "bos_token_id")
	must(err)
	g.BOS = int32(id)
	id, err = f.Int(p + "eos_token_id")
	must(err)
	g.EOS = int32(id)
	addBOS, err := f.Bool(p + "add_bos_token")
	must(err)
	g.AddBOS = &addBOS
	return g
}

func trickyStrings(t testing.TB) []string {
	var out []string
	readGzip(t, filepath.Join("testdata", "strings.json.gz"), &out)
	if len(out) < 1500 {
		t.Fatalf("only %d strings", len(out))
	}
	return out
}

func TestDefaultModelMatchesReference(t *testing.T) {
	tok, err := FromGGUF(defaultModel(t))
	if err != nil {
		t.Fatal(err)
	}
	matchReference(t, tok, "smollm2")
	if got := tok.EOS(); len(got) != 1 || tok.Token(got[0]) != "<|im_end|>" {
		t.Errorf("EOS() = %v", got)
	}
	if tok.Token(tok.BOS()) != "<|im_start|>" {
		t.Errorf("BOS() = %d", tok.BOS())
	}
}

func TestVendorFilesMatchReference(t *testing.T) {
	for _, name := range vendors {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && name != "qwen3" && name != "llama2" {
				t.Skip("large file in -short mode")
			}
			raw, _ := vendorFiles(t, name)
			start := time.Now()
			tok, err := FromJSON(raw, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("loaded %d bytes in %v", len(raw), time.Since(start))
			matchReference(t, tok, name)
		})
	}
}

func matchReference(t *testing.T, tok *Tokenizer, name string) {
	t.Helper()
	var fix idFixture
	readGzip(t, filepath.Join("testdata", "ids", name+".json.gz"), &fix)
	strings := trickyStrings(t)
	if len(strings) != len(fix.Rows) {
		t.Fatalf("%d strings, %d reference rows: run the fixture scripts", len(strings), len(fix.Rows))
	}
	if tok.VocabSize() != fix.Vocab {
		t.Errorf("VocabSize() = %d, want %d", tok.VocabSize(), fix.Vocab)
	}
	if got, err := tok.Encode("Hello", EncodeOptions{AddSpecial: true}); err != nil || idsDigest(got) != idsDigest(fix.Hello) {
		t.Errorf("Encode(Hello, AddSpecial) = %v, %v, want %v", got, err, fix.Hello)
	}
	bad := 0
	report := func(format string, args ...any) {
		if bad++; bad <= 12 {
			t.Errorf(format, args...)
		}
	}
	for i, s := range strings {
		want := fix.Rows[i]
		ids, err := tok.Encode(s, EncodeOptions{})
		if err != nil || idsDigest(ids) != want[:12] {
			report("string %d %.60q: ids %.12v differ (%v)", i, s, spell(tok, ids), err)
			continue
		}
		plain, err := tok.Encode(s, EncodeOptions{PlainSpecial: true})
		if err != nil || idsDigest(plain) != want[12:24] {
			report("string %d %.60q: ids with plain specials %.12v differ (%v)", i, s, spell(tok, plain), err)
		}
		if text := tok.Decode(ids, false); digest([]byte(text)) != want[24:] {
			report("string %d %.60q: decodes to %.60q", i, s, text)
		}
	}
	matchRandom(t, tok, fix.Random, report)
	t.Logf("%s: %d strings, %d differences", name, len(strings), bad)
}

// matchRandom compares the decoded text of random ids. A byte-fallback file is
// left out: the reference turns a whole run of byte tokens into U+FFFD when any
// of it is invalid, which no stream can do; we keep the valid characters.
func matchRandom(t *testing.T, tok *Tokenizer, want []string, report func(string, ...any)) {
	t.Helper()
	if tok.perByteBad {
		return
	}
	for i, ids := range randomIDs(len(want), 24, tok.VocabSize()) {
		if got := digest([]byte(tok.Decode(ids, true))); got != want[i][:12] {
			report("random ids %v decode to %q without specials", ids, tok.Decode(ids, true))
		}
		if got := digest([]byte(tok.Decode(ids, false))); got != want[i][12:] {
			report("random ids %v decode to %q", ids, tok.Decode(ids, false))
		}
	}
}

func spell(tok *Tokenizer, ids []int32) []string {
	var out []string
	for _, id := range ids {
		out = append(out, tok.Token(id))
	}
	return out
}
