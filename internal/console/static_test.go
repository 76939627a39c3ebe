package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/testkit"
)

var assetTypes = regexp.MustCompile(`^(text/css|text/javascript|image/svg\+xml)`)

// Files never change under their names, and those of other projects are as they were published.
func TestAssets_files_areImmutableAndUnchanged(t *testing.T) {
	t.Parallel()
	all, err := newAssets()
	testkit.Must(t, err)
	mux := http.NewServeMux()
	mux.Handle("GET /{file}", all)
	get := func(name, encoding string) *httptest.ResponseRecorder {
		req := httptest.NewRequest(http.MethodGet, "/"+name, nil)
		req.Header.Set("Accept-Encoding", encoding)
		res := httptest.NewRecorder()
		mux.ServeHTTP(res, req)
		return res
	}
	for file, name := range all.names {
		parts := []string{file}
		if file == joined[0] {
			parts = joined
		}
		var content []byte
		for _, part := range parts {
			more, err := os.ReadFile("assets/" + part)
			testkit.Must(t, err)
			content = append(append(content, more...), '\n')
		}
		sum := sha256.Sum256(content)
		if !strings.Contains(name, hex.EncodeToString(sum[:6])) {
			t.Errorf("%s is served as %s", file, name)
		}
		plain, packed := get(name, ""), get(name, "br, gzip")
		for _, res := range []*httptest.ResponseRecorder{plain, packed} {
			if res.Code != http.StatusOK || res.Header().Get("Vary") != "Accept-Encoding" ||
				res.Header().Get("Cache-Control") != "public, max-age=31536000, immutable" ||
				!assetTypes.MatchString(res.Header().Get("Content-Type")) {
				t.Errorf("%s: %d %v", name, res.Code, res.Header())
			}
		}
		z, err := gzip.NewReader(packed.Body)
		testkit.Must(t, err)
		unpacked, err := io.ReadAll(z)
		if err != nil || !bytes.Equal(unpacked, content) || !bytes.Equal(plain.Body.Bytes(), content) {
			t.Errorf("%s has another content, %v", name, err)
		}
	}
	for _, unknown := range []string{"console.js", "vendored.txt", "..%2fconsole.go", all.names["console.js"] + "x"} {
		if res := get(unknown, ""); res.Code != http.StatusNotFound {
			t.Errorf("%s: %d", unknown, res.Code)
		}
	}
	list, err := os.ReadFile("assets/vendored.txt")
	testkit.Must(t, err)
	vendored := 0
	for line := range strings.Lines(string(list)) {
		fields := strings.Fields(line)
		if strings.HasPrefix(line, "#") || len(fields) < 5 {
			continue
		}
		vendored++
		content, err := os.ReadFile("assets/" + fields[0])
		if sum := sha256.Sum256(content); err != nil || hex.EncodeToString(sum[:]) != fields[3] {
			t.Errorf("%s is not the file of %s: %x, %v", fields[0], fields[1], sum, err)
		}
	}
	if own := []string{"console.js", "console.css", "icon.svg"}; vendored-len(joined)+1+len(own) != len(all.names) {
		t.Errorf("%d files of other projects and %q are not all of %v", vendored, own, all.names)
	}
}

// forbiddenMarkup is what no template and no script of ours may contain: code in attributes, styles
// that the policy ignores, and scripts that make markup of texts.
var forbiddenMarkup = regexp.MustCompile(`(?i)hx-on|hx-vals|hx-vars|hx-live|\bjs:|javascript:|` +
	`hx-trigger="[^"]*\[|\sstyle=|<style|` +
	`\son[a-z]+\s*=\s*["'{]|<script(?: nonce="\{\{\.Nonce\}\}")?>|<script[^>]*src="[^{]|<iframe|<object|` +
	`<embed|<base|http-equiv|target="_blank"|<!--`)

var forbiddenScript = regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|` +
	`new Function|localStorage|sessionStorage|document\.cookie|srcdoc|setTimeout\(["'` + "`" + `]`)

func TestTemplates_code_isInScriptsOnly(t *testing.T) {
	t.Parallel()
	templates, err := fs.Glob(templateFiles, "templates/*.html")
	if err != nil || len(templates) == 0 {
		t.Fatal(templates, err)
	}
	for _, name := range templates {
		content, err := fs.ReadFile(templateFiles, name)
		testkit.Must(t, err)
		for _, found := range forbiddenMarkup.FindAllString(string(content), -1) {
			t.Errorf("%s contains %s", name, found)
		}
	}
	script, err := os.ReadFile("assets/console.js")
	testkit.Must(t, err)
	for _, found := range forbiddenScript.FindAllString(string(script), -1) {
		t.Errorf("console.js contains %s", found)
	}
	for _, bad := range []string{`<a onclick="x">`, `<p hx-on:click="x">`, `<p style="x">`, "<script>",
		`<script src="x">`, `<p hx-trigger="click[x]">`, `<a href="javascript:x">`} {
		if !forbiddenMarkup.MatchString(bad) {
			t.Errorf("%s is not found", bad)
		}
	}
}

// unescapedTypes are the types of html/template whose texts it does not escape.
var unescapedTypes = []string{"HTML", "HTMLAttr", "JS", "JSStr", "CSS", "URL", "Srcset"}

func TestPackage_texts_areAlwaysEscaped(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		testkit.Must(t, err)
		for _, i := range f.Imports {
			if i.Path.Value == `"text/template"` || i.Name != nil && i.Path.Value == `"html/template"` {
				t.Errorf("%s imports %s", name, i.Path.Value)
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				of, ok := s.X.(*ast.Ident)
				if ok && of.Name == "template" && slices.Contains(unescapedTypes, s.Sel.Name) {
					t.Errorf("%s uses template.%s", name, s.Sel.Name)
				}
			}
			return true
		})
	}
}
