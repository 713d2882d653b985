package hub

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	hf "github.com/gomlx/go-huggingface/hub"
)

// wanted are the files of a repository that a model folder needs, besides the
// weights.
var wanted = []string{
	"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
	"special_tokens_map.json", "chat_template.jinja", "model.safetensors.index.json",
}

func repoFolder(home, id string) string {
	return filepath.Join(home, "models", strings.ReplaceAll(id, "/", "--"))
}

// pullRepo fetches config, tokenizer and safetensors of a Hugging Face
// repository ($HF_TOKEN, $HF_ENDPOINT) into one folder. The folder gets its
// final name when every file is there.
func pullRepo(ctx context.Context, home, id string, progress Progress) (string, error) {
	final := repoFolder(home, id)
	dir := final + ".partial"
	token := os.Getenv("HF_TOKEN")
	repo := hf.New(id).WithAuth(token).WithCacheDir(filepath.Join(home, "hub")).WithProgressBar(false)
	repo.Verbosity = 0
	if err := repo.DownloadInfo(true); err != nil {
		return "", fmt.Errorf("model %s: %w (is the name right? private models need HF_TOKEN)", id, err)
	}
	var names []string
	for name, err := range repo.IterFileNames() {
		if err != nil {
			return "", fmt.Errorf("model %s: %w", id, err)
		}
		if slices.Contains(wanted, name) || path.Ext(name) == ".safetensors" && !strings.Contains(name, "/") {
			names = append(names, name)
		}
	}
	if !slices.Contains(names, "config.json") || !slices.ContainsFunc(names, func(n string) bool { return path.Ext(n) == ".safetensors" }) {
		return "", fmt.Errorf("model %s: the repository has no config.json with safetensors weights; pick one that has, or download its GGUF file and give the path", id)
	}
	for _, name := range names {
		u, err := repo.FileURL(name)
		if err != nil {
			return "", fmt.Errorf("model %s: %w", id, err)
		}
		sum, err := linkedSum(ctx, u, token)
		if err != nil {
			return "", fmt.Errorf("model %s: %s: %w", id, name, err)
		}
		f := file{url: u, token: token, sha256: sum, path: filepath.Join(dir, name), label: name}
		if err := fetch(ctx, f, progress); err != nil {
			return "", err
		}
	}
	return final, os.Rename(dir, final)
}

// linkedSum returns the SHA-256 of a large file, which the hub states in a
// header; empty for small files, whose tag is a git hash.
func linkedSum(ctx context.Context, u, token string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, u, nil)
	if err != nil {
		return "", err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	resp.Body.Close()
	if resp.StatusCode >= http.StatusBadRequest {
		return "", fmt.Errorf("server answered %s", resp.Status)
	}
	tag := strings.Trim(resp.Header.Get("X-Linked-Etag"), `"`)
	if len(tag) == 64 {
		return tag, nil
	}
	return "", nil
}
