package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"tandem/test/bench/profile"
)

// check writes what a GPU check prints: a heading, iterations of an engine that costs 1 ms and 10 us a token, off by noise.
func check(t *testing.T, noise float64) string {
	t.Helper()
	var lines bytes.Buffer
	lines.WriteString("{\"step\":\"device\",\"device\":\"x\"}\n")
	for n := 1; n <= 20; n++ {
		p := profile.Point{CtxTokens: 64 * n, GenRequests: n % 5, GenContext: n * n}
		p.Seconds = (1e-3 + 1e-5*float64(p.CtxTokens)) * (1 + noise*float64(n%2))
		if err := p.WriteLine(&lines, "m", "d"); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "check.jsonl")
	if err := os.WriteFile(path, lines.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func bench(args ...string) (out, log string, err error) {
	cmd := root()
	var o, l bytes.Buffer
	cmd.SetOut(&o)
	cmd.SetErr(&l)
	cmd.SetArgs(args)
	err = cmd.Execute()
	return o.String(), l.String(), err
}

func TestProfileOfAGPUCheck(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.json")
	if _, log, err := bench("profile", "--gpu-check", check(t, 0), "-o", path); err != nil || !strings.Contains(log, "20 iterations") {
		t.Fatalf("%v: %s", err, log)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	p, err := profile.Read(file)
	if err != nil || p.Model != "m" || p.Device != "d" || p.Coefficients.CtxToken < 0.99e-5 || p.Coefficients.CtxToken > 1.01e-5 {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestPoorProfilesAreRefused(t *testing.T) {
	bad := check(t, 1)
	if out, _, err := bench("profile", "--gpu-check", bad); !errors.Is(err, profile.ErrPoor) || out != "" || !strings.Contains(err.Error(), "--force") {
		t.Errorf("%v, wrote %q", err, out)
	}
	if out, _, err := bench("profile", "--gpu-check", bad, "--force"); err != nil || !strings.Contains(out, "tandem-profile") {
		t.Errorf("%v, wrote %q", err, out)
	}
}

func TestProfileRefusesBadUse(t *testing.T) {
	for want, args := range map[string][]string{
		"leave MODEL out": {"--gpu-check", "x", "model"}, "no such file": {"--gpu-check", "nowhere.jsonl"}, "backend": {"--backend", "tpu"},
		"--pool-tokens 5": {"--pool-tokens", "5"}, "--threads -1": {"--threads", "-1"}, "there is no folder": {"-o", "no/where.json"}, "is a folder": {"-o", t.TempDir()},
	} {
		if _, _, err := bench(append([]string{"profile"}, args...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", args, err)
		}
	}
}

func TestFlagsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/benchmarking.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, cmd := range root().Commands() {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if !strings.Contains(string(page), "`--"+f.Name+"`") {
				t.Errorf("--%s of bench %s is not in docs/benchmarking.md", f.Name, cmd.Name())
			}
		})
	}
}
