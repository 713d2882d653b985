package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// root is the top of the tree, seen from this package.
const root = "../.."

// source is one Go file of the tree.
type source struct {
	path string // relative to the root, with slashes
	pkg  string // its folder
	test bool
	file *ast.File
	fset *token.FileSet
	text string
}

// generated reports whether the file says that a program wrote it.
func (s source) generated() bool { return ast.IsGenerated(s.file) }

// load parses every Go file of the main module.
func load(t *testing.T) []source {
	t.Helper()
	var out []source
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		if d.IsDir() {
			if skipped(rel, path) {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(path) != ".go" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, text, parser.ParseComments)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		out = append(out, source{
			path: rel, pkg: filepath.ToSlash(filepath.Dir(rel)), test: strings.HasSuffix(rel, "_test.go"),
			file: file, fset: fset, text: string(text),
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out) < 20 {
		t.Fatalf("found only %d Go files below %s", len(out), root)
	}
	return out
}

// skipped names folders that are not part of the main module.
func skipped(rel, path string) bool {
	base := filepath.Base(rel)
	if rel != "." && (strings.HasPrefix(base, ".") || base == "node_modules" || base == "bin") {
		return true
	}
	_, err := os.Stat(filepath.Join(path, "go.mod"))
	return rel != "." && err == nil
}
