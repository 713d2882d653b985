package cuda

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unsafe"
)

func sources(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("*.cu")
	if err != nil || len(files) == 0 {
		t.Fatal("no sources", err)
	}
	for i, f := range files {
		files[i] = strings.TrimSuffix(f, ".cu")
	}
	return files
}

func TestPTXIsOfTheseSources(t *testing.T) {
	for _, target := range Targets {
		mods, err := Modules(target)
		if err != nil {
			t.Fatal(err)
		}
		byName := map[string]string{}
		for _, m := range mods {
			byName[m.Name] = string(m.PTX)
		}
		for _, name := range sources(t) {
			stamp, err := Stamp(os.DirFS("."), name+".cu", Flags(target))
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(byName[name], stamp+"\n") {
				t.Errorf("PTX of %s.cu for sm_%d is stale; run make kernels", name, target)
			}
			delete(byName, name)
		}
		for name := range byName {
			t.Errorf("PTX of %s for sm_%d has no source; remove it", name, target)
		}
	}
}

var (
	entries = regexp.MustCompile(`(?s)\.visible \.entry (\w+)\((.*?)\)\n(.*?)\{`)
	param   = regexp.MustCompile(`\.param \.(\w+)`)
	threads = regexp.MustCompile(`\.maxntid (\d+)`)
	version = regexp.MustCompile(`\.version (\d+\.\d+)`)
)

// ptxKinds are the parameter kinds that a PTX type may stand for.
var ptxKinds = map[string]string{"u32": "i", "f32": "f", "u64": "pl", "b32": "i", "b64": "pl", "s32": "i", "s64": "l"}

func TestListMatchesPTX(t *testing.T) {
	for _, target := range Targets {
		mods, err := Modules(target)
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]string{}
		for _, m := range mods {
			if v := version.FindSubmatch(m.PTX); v == nil || string(v[1]) > "9.0" {
				t.Errorf("%s: PTX version %s; drivers of CUDA %d take up to 9.0", m.Name, v, Driver)
			}
			for _, e := range entries.FindAllSubmatch(m.PTX, -1) {
				found[string(e[1])] = m.Name
				checkEntry(t, m.Name, string(e[1]), string(e[2]), string(e[3]))
			}
		}
		for _, k := range Kernels() {
			if found[k.Name] != k.Module {
				t.Errorf("sm_%d: %s is listed in module %s, found in %q", target, k.Name, k.Module, found[k.Name])
			}
		}
		if len(found) != len(Kernels()) {
			t.Errorf("sm_%d: %d kernels, %d are listed", target, len(found), len(Kernels()))
		}
	}
}

func checkEntry(t *testing.T, module, name, params, attributes string) {
	t.Helper()
	k, err := Find(name)
	if err != nil {
		t.Errorf("module %s: %v", module, err)
		return
	}
	types := param.FindAllStringSubmatch(params, -1)
	if len(types) != len(k.Params) {
		t.Errorf("%s has %d parameters, %d are listed", name, len(types), len(k.Params))
		return
	}
	for i, p := range k.Params {
		if !strings.ContainsRune(ptxKinds[types[i][1]], rune(p.Kind)) {
			t.Errorf("%s: parameter %s is listed as %c, is %s", name, p.Name, p.Kind, types[i][1])
		}
	}
	if m := threads.FindStringSubmatch(attributes); m == nil || m[1] != strconv.Itoa(k.Threads) {
		t.Errorf("%s: %d threads are listed, bound %v", name, k.Threads, m)
	}
}

var logLine = regexp.MustCompile(`^sm_(\d+) (\w+) (\w+): registers (\d+), stack (\d+), spill stores (\d+), spill loads (\d+), shared (\d+), sources (\w+)$`)

func TestNoKernelSpills(t *testing.T) {
	text, err := os.ReadFile("ptx/ptxas.log")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		m := logLine.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			t.Fatalf("odd line in ptxas.log: %s", line)
		}
		k, err := Find(m[3])
		if err != nil {
			t.Errorf("ptxas.log is stale; run make kernels: %v", err)
			continue
		}
		seen[m[1]+m[3]] = true
		if m[5] != "0" || m[6] != "0" || m[7] != "0" {
			t.Errorf("%s uses local memory on sm_%s: %s", m[3], m[1], line)
		}
		if regs, _ := strconv.Atoi(m[4]); regs*k.Threads > 65536 {
			t.Errorf("%s: %d registers of %d threads do not fit sm_%s", m[3], regs, k.Threads, m[1])
		}
		if smem, _ := strconv.Atoi(m[8]); smem > 48<<10 {
			t.Errorf("%s declares %d bytes of shared memory, at most 48 KiB are possible", m[3], smem)
		}
		target, _ := strconv.Atoi(m[1])
		if stamp, _ := Stamp(os.DirFS("."), m[2]+".cu", Flags(target)); !strings.HasPrefix(stamp, hashPrefix+m[9]) {
			t.Errorf("ptxas.log is stale for %s on sm_%d; run make kernels", m[2], target)
		}
	}
	for _, target := range Targets {
		for _, k := range Kernels() {
			if !seen[fmt.Sprint(target)+k.Name] {
				t.Errorf("ptxas.log has no line of %s on sm_%d", k.Name, target)
			}
		}
	}
}

func TestSampleRowHasTheKernelsLayout(t *testing.T) {
	var r SampleRow
	for _, f := range []struct {
		name string
		at   uintptr
		want uintptr
	}{
		{"Seed", unsafe.Offsetof(r.Seed), 48},
		{"Stream", unsafe.Offsetof(r.Stream), 64},
		{"BanCount", unsafe.Offsetof(r.BanCount), 92},
		{"size", unsafe.Sizeof(r), 96},
	} {
		if f.at != f.want {
			t.Errorf("%s at %d, want %d", f.name, f.at, f.want)
		}
	}
}

func TestF16BitsRoundsToEven(t *testing.T) {
	for x, want := range map[float32]uint16{
		0: 0, 1: 0x3c00, -2: 0xc000, 65504: 0x7bff, 65520: 0x7c00, 1.0 / (1 << 24): 1, 1.0 / (1 << 25): 0,
		1 + 1.0/2048: 0x3c00, 1 + 3.0/2048: 0x3c02, 0.333251953125: 0x3555, 6.097e-05: 0x03ff, 6.1035156e-05: 0x0400,
	} {
		if got := F16Bits(x); got != want {
			t.Errorf("%v: %#04x, want %#04x", x, got, want)
		}
	}
}

func TestInterleaveIsAPermutation(t *testing.T) {
	const inter = 40
	seen := map[int]bool{}
	for i := range 2 * inter {
		seen[InterleaveGateUp(i, inter)] = true
	}
	if len(seen) != 2*inter || InterleaveGateUp(0, inter) != 0 || InterleaveGateUp(8, inter) != inter || InterleaveGateUp(17, inter) != 9 {
		t.Error("rows are lost or misplaced")
	}
}

func TestLaunchesCoverOddSizes(t *testing.T) {
	for _, k := range Kernels() {
		if k.Threads < 32 || k.Threads%32 != 0 {
			t.Errorf("%s has blocks of %d threads", k.Name, k.Threads)
		}
	}
	if l := Each(2049, 8); l.Grid[0] != 2 {
		t.Errorf("2049 elements make %d blocks", l.Grid[0])
	}
	if got := DecodeTiles(nil, []int32{0, 1, 64, 65}); fmt.Sprint(got) != "[0 0 1 2 4]" {
		t.Errorf("tiles %v", got)
	}
	if _, err := DecodeKernel(KVBF16, 300, 1); err == nil {
		t.Error("a head of 300 has a kernel")
	}
	if _, err := GemvRows(33); err == nil {
		t.Error("33 rows have a kernel")
	}
}
