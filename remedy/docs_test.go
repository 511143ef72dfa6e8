package remedy

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"
)

func TestEachCauseIsASafeWordAndInTheHandlerGuide(t *testing.T) {
	guide, err := os.ReadFile("../docs/handlers.md")
	if err != nil {
		t.Fatal(err)
	}
	file, err := parser.ParseFile(token.NewFileSet(), "call.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || !strings.HasPrefix(spec.Names[0].Name, "Cause") {
			return true
		}
		found++
		word, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		if !isWord(word) {
			t.Errorf("%s: %q is not a safe word", spec.Names[0].Name, word)
		}
		if !strings.Contains(string(guide), "`"+word+"`") {
			t.Errorf("docs/handlers.md does not explain %q", word)
		}
		return true
	})
	if found == 0 {
		t.Fatal("no cause found: does the test still read the right file?")
	}
}
