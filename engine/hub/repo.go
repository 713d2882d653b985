package hub

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"regexp"
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

// repository is a name of a Hugging Face repository, split: owner/name, and the
// quantisation of one of its GGUF files, or empty for safetensors.
type repository struct{ id, quant string }

// repoName matches owner/name as Hugging Face spells repositories, and an
// optional quantisation after a colon.
var repoName = regexp.MustCompile(`^([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::([A-Za-z0-9][\w.-]*))?$`)

// parseRepo tells owner/name[:QUANT] from a mistyped path.
func parseRepo(name string) (repository, bool) {
	m := repoName.FindStringSubmatch(name)
	if m == nil || strings.HasSuffix(name, ".gguf") || strings.Contains(name, "..") {
		return repository{}, false
	}
	return repository{id: m[1], quant: m[2]}, true
}

func (r repository) folder(home string) string {
	name := strings.ReplaceAll(r.id, "/", "--")
	if r.quant != "" {
		name += "--gguf-" + strings.ToLower(r.quant)
	}
	return filepath.Join(home, "models", name)
}

// pullRepo fetches a model of a Hugging Face repository ($HF_TOKEN,
// $HF_ENDPOINT) into one folder: config, tokenizer and safetensors, or one GGUF
// file. The folder gets its final name when every file is there.
func pullRepo(ctx context.Context, home string, r repository, progress Progress) (string, error) {
	final := r.folder(home)
	dir := final + ".partial"
	token := os.Getenv("HF_TOKEN")
	repo := hf.New(r.id).WithAuth(token).WithCacheDir(filepath.Join(home, "hub")).WithProgressBar(false)
	repo.Verbosity = 0
	if err := repo.DownloadInfo(true); err != nil {
		return "", noInfo(r.id, err)
	}
	var all []string
	for name, err := range repo.IterFileNames() {
		if err != nil {
			return "", fmt.Errorf("model %s: %w", r.id, err)
		}
		all = append(all, name)
	}
	names, err := r.choose(all)
	if err != nil {
		return "", fmt.Errorf("model %s: %w", r.id, err)
	}
	for _, name := range names {
		u, err := repo.FileURL(name)
		if err != nil {
			return "", fmt.Errorf("model %s: %w", r.id, err)
		}
		sum, err := linkedSum(ctx, u, token)
		if err != nil {
			return "", fmt.Errorf("model %s: %s: %w", r.id, name, err)
		}
		f := file{url: u, token: token, sha256: sum, path: filepath.Join(dir, name), label: name}
		if err := fetch(ctx, f, progress); err != nil {
			return "", err
		}
	}
	return final, os.Rename(dir, final)
}

// noInfo tells a hub that cannot be reached from one that has no such repository.
func noInfo(id string, err error) error {
	var network net.Error
	if errors.As(err, &network) {
		return fmt.Errorf("model %s: cannot reach the model hub: %w (no network? set HTTPS_PROXY, or HF_ENDPOINT for another hub, or give the path of a model)", id, network)
	}
	return fmt.Errorf("model %s: %w (is the name right? private models need HF_TOKEN)", id, err)
}

// choose picks the files to fetch out of all of a repository.
func (r repository) choose(all []string) ([]string, error) {
	quants := ggufFiles(all)
	if r.quant != "" {
		if name, ok := quants[strings.ToLower(r.quant)]; ok {
			return []string{name}, nil
		}
		if len(quants) == 0 {
			return nil, errors.New("the repository has no GGUF file of one part")
		}
		return nil, fmt.Errorf("the repository has no GGUF file %s; it has %s", r.quant, r.spell(quants))
	}
	// Some repositories hold the weights twice: model*.safetensors, and the same in the vendor's own layout.
	weights := slices.DeleteFunc(slices.Clone(all), func(n string) bool { return strings.Contains(n, "/") || path.Ext(n) != ".safetensors" })
	if usual := slices.DeleteFunc(slices.Clone(weights), func(n string) bool { return !strings.HasPrefix(n, "model") }); len(usual) > 0 {
		weights = usual
	}
	switch {
	case len(weights) > 0 && slices.Contains(all, "config.json"):
		side := slices.DeleteFunc(slices.Clone(all), func(n string) bool { return !slices.Contains(wanted, n) })
		return append(side, weights...), nil
	case len(quants) > 0:
		return nil, fmt.Errorf("the repository holds GGUF files; name one: %s", r.spell(quants))
	}
	return nil, errors.New("the repository has no config.json with safetensors weights and no GGUF file; pick one that has")
}

// spell lists the names to pull single GGUF files by.
func (r repository) spell(quants map[string]string) string {
	names := make([]string, 0, len(quants))
	for q := range quants {
		names = append(names, r.id+":"+strings.ToUpper(q))
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// quantOf finds the quantisation at the end of a GGUF file's name, as in
// Model-1B-Q4_K_M.gguf and model.fp16.gguf.
var quantOf = regexp.MustCompile(`(?i)[-._]((?:ud-)?i?q\d\w*|f16|fp16|bf16|f32|fp32|mxfp4\w*)\.gguf$`)

// ggufFiles maps quantisations, in lower case, to the GGUF files of one part at
// the top of a repository. Projectors of images are no models.
func ggufFiles(all []string) map[string]string {
	quants := map[string]string{}
	for _, name := range all {
		m := quantOf.FindStringSubmatch(name)
		if m == nil || strings.Contains(name, "/") || strings.HasPrefix(strings.ToLower(name), "mmproj") {
			continue
		}
		quants[strings.ToLower(m[1])] = name
	}
	return quants
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
