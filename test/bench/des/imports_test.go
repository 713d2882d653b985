package des

import (
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// What decides in a simulated cluster is production's: the simulator imports it,
// makes it, and calls it. It reaches scheduler, block manager and rank router
// only through the core and the lockstep that production's driver uses, so it has
// nothing to put in their place.
func TestPoliciesAreProductions(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	imports, uses := map[string]bool{}, map[string]bool{}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(gotoken.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range f.Imports {
			name, _ := strconv.Unquote(i.Path.Value)
			imports[name] = true
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := s.X.(*ast.Ident); ok {
					uses[x.Name+"."+s.Sel.Name] = true
				}
			}
			return true
		})
	}
	for _, must := range []string{"tandem/engine/executor", "tandem/engine/lockstep", "tandem/engine/transfer", "tandem/serve/router", "tandem/serve/conversation", "tandem/test/bench/schedule"} {
		if !imports[must] {
			t.Errorf("%s is not simulated: nothing imports it", must)
		}
	}
	for _, no := range []string{"tandem/engine/scheduler", "tandem/engine/kvcache", "math/rand", "os", "sync", "net/http"} {
		if imports[no] {
			t.Errorf("%s is imported", no)
		}
	}
	for _, must := range []string{"executor.New", "lockstep.New", "router.NewRouter", "schedule.New"} {
		if !uses[must] {
			t.Errorf("%s is not called", must)
		}
	}
	allowed := []string{"adprouter.Settings", "adprouter.NewItem"} // what a worker's configuration and driver use too
	for use := range uses {
		if strings.HasPrefix(use, "adprouter.") && !slices.Contains(allowed, use) {
			t.Errorf("%s: the rank router is the lockstep's", use)
		}
		if use == "time.Now" || use == "time.Since" || strings.HasPrefix(use, "rand.") && use != "rand.New" && use != "rand.NewPCG" {
			t.Errorf("%s: a run must depend on its configuration only", use)
		}
	}
}
