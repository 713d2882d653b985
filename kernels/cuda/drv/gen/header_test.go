package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// foreignHeaders returns the folders with NVIDIA's own cuda.h: those of an installed toolkit and of
// packages that were unpacked below .cache.
func foreignHeaders(t *testing.T) []string {
	t.Helper()
	var out []string
	patterns := []string{"/usr/local/cuda*/include/cuda.h", os.Getenv("CUDA_HOME") + "/include/cuda.h"}
	for _, depth := range []string{"*", "*/*", "*/*/*", "*/*/*/*"} {
		patterns = append(patterns, "../../../../.cache/"+depth+"/include/cuda.h")
	}
	for _, p := range patterns {
		found, err := filepath.Glob(p)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			out = append(out, filepath.Dir(f))
		}
	}
	return out
}

// compile builds and runs a C program that includes cuda.h from the folder.
func compile(t *testing.T, cc, include, body string) string {
	t.Helper()
	dir := t.TempDir()
	src, bin := filepath.Join(dir, "a.c"), filepath.Join(dir, "a")
	if err := os.WriteFile(src, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(cc, "-I", include, "-o", bin, src).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", include, err, out)
	}
	out, err := exec.Command(bin).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

var (
	enumerator = regexp.MustCompile(`(?m)^    (CU\w+) = \d+,$`)
	macro      = regexp.MustCompile(`(?m)^#define (CU_\w+) (?:0x)?\d+$`)
	structure  = regexp.MustCompile(`(?s)typedef (?:struct|union) \w+ \{\n(.*?)\n\} (\w+);`)
	prototype  = regexp.MustCompile(`(?m)^CUresult (\w+)\(.*$`)
	field      = regexp.MustCompile(`(\w+)(?:\[[^\]]*\])?[,;]`)
	nested     = regexp.MustCompile(`(?s)struct \{.*?\} `)
	// Targets that newer headers dropped, and the padding of a launch attribute, whose name is ours.
	gone = regexp.MustCompile(`^(CU_TARGET_COMPUTE_(1\d|2\d)|CUlaunchAttribute\.pad)$`)
)

// layoutProgram prints every value, size and offset that our header states.
func layoutProgram(header string) string {
	var b strings.Builder
	b.WriteString("#include <cuda.h>\n#include <stdio.h>\n#include <stddef.h>\nint main(void) {\n")
	for _, re := range []*regexp.Regexp{enumerator, macro} {
		for _, m := range re.FindAllStringSubmatch(header, -1) {
			if !gone.MatchString(m[1]) {
				fmt.Fprintf(&b, "printf(\"%s %%lld\\n\", (long long)%s);\n", m[1], m[1])
			}
		}
	}
	for _, m := range structure.FindAllStringSubmatch(header, -1) {
		fmt.Fprintf(&b, "printf(\"%s %%zu\\n\", sizeof(%s));\n", m[2], m[2])
		for _, f := range field.FindAllStringSubmatch(nested.ReplaceAllString(m[1], ""), -1) {
			if name := m[2] + "." + f[1]; !gone.MatchString(name) {
				fmt.Fprintf(&b, "printf(\"%s %%zu\\n\", offsetof(%s, %s));\n", name, m[2], f[1])
			}
		}
	}
	return b.String() + "return 0; }\n"
}

// declarations repeats our prototypes behind the foreign header, so that the compiler compares them.
func declarations(header string) string {
	var b strings.Builder
	b.WriteString("#include <cuda.h>\n")
	for _, m := range prototype.FindAllStringSubmatch(header, -1) {
		fmt.Fprintf(&b, "#undef %s\n%s\n", m[1], m[0])
	}
	return b.String() + "int main(void) { return 0; }\n"
}

// TestHeaderIsThatOfTheDriver compares our header with NVIDIA's wherever one is found: every value,
// the size of every structure, the offset of every field and the type of every function.
func TestHeaderIsThatOfTheDriver(t *testing.T) {
	foreign := foreignHeaders(t)
	if len(foreign) == 0 {
		t.Skip("no cuda.h of a toolkit here; one comes with the package nvidia-cuda-runtime")
	}
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler")
	}
	header := read(t, "../../include/cuda.h")
	program := layoutProgram(header)
	want := compile(t, cc, "../../include", program)
	if n := strings.Count(want, "\n"); n < 400 {
		t.Fatalf("only %d facts were found in our header", n)
	}
	for _, dir := range foreign {
		got := compile(t, cc, dir, program)
		theirs := strings.Split(got, "\n")
		for i, line := range strings.Split(want, "\n") {
			if line != theirs[i] {
				t.Errorf("%s: ours %q, theirs %q", dir, line, theirs[i])
			}
		}
		compile(t, cc, dir, declarations(header))
	}
}
