package bustest_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"
)

// TestDocsAreWhatRuns holds every Go snippet of docs/testing.md to be what stands in docs_test.go, declaration for
// declaration, and every test of docs_test.go to be in the documentation.
func TestDocsAreWhatRuns(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/testing.md")
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile("docs_test.go")
	if err != nil {
		t.Fatal(err)
	}
	run := declarations(t, "docs_test.go", string(code))
	cited := make(map[string]bool)
	snippets := strings.Split(string(page), "```go\n")[1:]
	for i, s := range snippets {
		text, _, closed := strings.Cut(s, "\n```\n")
		if !closed {
			t.Fatalf("snippet %d has no end", i+1)
		}
		for name, shown := range declarations(t, fmt.Sprintf("snippet %d", i+1), "package p\n"+text) {
			cited[name] = true
			switch is, ok := run[name]; {
			case !ok:
				t.Errorf("snippet %d has %s, which docs_test.go has not", i+1, name)
			case is != shown:
				t.Errorf("snippet %d shows %s as\n%s\ndocs_test.go has\n%s", i+1, name, shown, is)
			}
		}
	}
	for name := range run {
		if !cited[name] {
			t.Errorf("%s of docs_test.go is in no snippet", name)
		}
	}
	if len(snippets) < 10 {
		t.Errorf("%d snippets: the page was not read as it is written", len(snippets))
	}
}

// declarations returns the text of each top-level declaration, comment included, by its name. Imports are left out.
func declarations(t *testing.T, name, text string) map[string]string {
	t.Helper()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatalf("%s is not Go: %v", name, err)
	}
	all := make(map[string]string)
	for _, d := range file.Decls {
		from, label, doc := d.Pos(), "", (*ast.CommentGroup)(nil)
		switch d := d.(type) {
		case *ast.FuncDecl:
			label, doc = d.Name.Name, d.Doc
			if d.Recv != nil {
				at := d.Recv.List[0].Type
				label = text[fset.Position(at.Pos()).Offset:fset.Position(at.End()).Offset] + "." + label
			}
		case *ast.GenDecl:
			if d.Tok == token.IMPORT {
				continue
			}
			label, doc = fmt.Sprint(d.Tok, " ", firstName(d)), d.Doc
		}
		if doc != nil {
			from = doc.Pos()
		}
		all[label] = text[fset.Position(from).Offset:fset.Position(d.End()).Offset]
	}
	return all
}

func firstName(d *ast.GenDecl) string {
	switch s := d.Specs[0].(type) {
	case *ast.TypeSpec:
		return s.Name.Name
	case *ast.ValueSpec:
		return s.Names[0].Name
	}
	return ""
}
