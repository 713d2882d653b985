package chat

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tandem/engine/model/gguf"
)

// The fixtures come from test/fixtures/tokenizer/templates.py.

type conversation struct {
	Messages            json.RawMessage `json:"messages"`
	Tools               json.RawMessage `json:"tools"`
	AddGenerationPrompt bool            `json:"add_generation_prompt"`
	Extra               json.RawMessage `json:"extra"`
}

type renderedFixture struct {
	BOS     string `json:"bos"`
	EOS     string `json:"eos"`
	Source  string `json:"source"`  // templates of our own
	Results string `json:"results"` // per conversation a hash, or "!" where the reference raises
}

func readJSON(t *testing.T, path string, into any) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// source finds a template's text, or skips.
func (f renderedFixture) source(t *testing.T, name string) string {
	t.Helper()
	if f.Source != "" {
		return f.Source
	}
	if name == "smollm2" {
		return defaultTemplate(t)
	}
	dir := os.Getenv("TANDEM_VENDOR_TOKENIZERS")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", ".cache", "vendor-tokenizers")
	}
	path := filepath.Join(dir, name, "tokenizer_config.json")
	if _, err := os.Stat(path); err != nil {
		t.Skipf("no template of %s; test/fixtures/tokenizer/fetch_vendor.sh fetches it", name)
	}
	var c struct {
		Template string `json:"chat_template"`
	}
	readJSON(t, path, &c)
	return c.Template
}

func defaultTemplate(t *testing.T) string {
	t.Helper()
	home := os.Getenv("TANDEM_HOME")
	if home == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			t.Skipf("no cache folder: %v", err)
		}
		home = filepath.Join(cache, "tandem")
	}
	data, err := os.ReadFile(filepath.Join(home, "models", "smollm2-135m-instruct", "SmolLM2-135M-Instruct.Q4_1.gguf"))
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
	s, err := f.String("tokenizer.chat_template")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestRenderEqualsReference(t *testing.T) {
	var convs []conversation
	readJSON(t, filepath.Join("testdata", "conversations.json"), &convs)
	var fixtures map[string]renderedFixture
	readJSON(t, filepath.Join("testdata", "rendered.json"), &fixtures)
	for name, f := range fixtures {
		t.Run(name, func(t *testing.T) {
			now := func() time.Time { return time.Date(2026, 3, 7, 9, 5, 2, 0, time.UTC) }
			tmpl, err := NewTemplate(f.source(t, name), Options{BOS: f.BOS, EOS: f.EOS, Now: now})
			if err != nil {
				t.Fatal(err)
			}
			results := strings.Fields(f.Results)
			if len(results) != len(convs) {
				t.Fatalf("%d conversations, %d results: run the fixture script", len(convs), len(results))
			}
			same := 0
			for i, c := range convs {
				got, err := tmpl.Render(Input(c))
				sum := sha256.Sum256([]byte(got))
				digest := hex.EncodeToString(sum[:])[:12]
				switch {
				case results[i] == "!" && err == nil:
					t.Errorf("conversation %d %.200s: rendered %q, the reference raises", i, c.Messages, got)
				case results[i] != "!" && err != nil:
					t.Errorf("conversation %d %.200s: %v", i, c.Messages, err)
				case results[i] != "!" && digest != results[i]:
					t.Errorf("conversation %d %.200s: rendered %q", i, c.Messages, got)
				default:
					same++
				}
			}
			t.Logf("%d of %d equal", same, len(convs))
		})
	}
}
