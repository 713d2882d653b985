package house

import (
	"go/ast"
	"strings"
	"testing"
)

const (
	maxFileLines = 600
	maxFuncLines = 80
)

func TestFilesAndFunctionsAreShort(t *testing.T) {
	for _, s := range load(t) {
		if s.generated() {
			continue
		}
		if n := strings.Count(s.text, "\n"); n > maxFileLines {
			t.Errorf("%s has %d lines; split it by concern (limit %d)", s.path, n, maxFileLines)
		}
		if s.test {
			continue
		}
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			n := s.fset.Position(f.End()).Line - s.fset.Position(f.Pos()).Line + 1
			if n > maxFuncLines {
				t.Errorf("%s: %s has %d lines (limit %d)", s.path, f.Name.Name, n, maxFuncLines)
			}
		}
	}
}

func TestExportedNamesAreDocumented(t *testing.T) {
	for _, s := range load(t) {
		if s.test || s.generated() || strings.HasPrefix(s.pkg, "cmd/") {
			continue
		}
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && receiverExported(d) && d.Doc == nil {
					t.Errorf("%s: %s has no comment", s.path, d.Name.Name)
				}
			case *ast.GenDecl:
				checkSpecs(t, s, d)
			}
		}
	}
}

func receiverExported(f *ast.FuncDecl) bool {
	if f.Recv == nil {
		return true
	}
	typ := f.Recv.List[0].Type
	if p, ok := typ.(*ast.StarExpr); ok {
		typ = p.X
	}
	if g, ok := typ.(*ast.IndexExpr); ok {
		typ = g.X
	}
	id, ok := typ.(*ast.Ident)
	return ok && id.IsExported()
}

func checkSpecs(t *testing.T, s source, d *ast.GenDecl) {
	for _, sp := range d.Specs {
		switch sp := sp.(type) {
		case *ast.TypeSpec:
			if sp.Name.IsExported() && d.Doc == nil && sp.Doc == nil && sp.Comment == nil {
				t.Errorf("%s: type %s has no comment", s.path, sp.Name.Name)
			}
		case *ast.ValueSpec:
			for _, n := range sp.Names {
				if n.IsExported() && d.Doc == nil && sp.Doc == nil && sp.Comment == nil {
					t.Errorf("%s: %s has no comment", s.path, n.Name)
				}
			}
		}
	}
}
