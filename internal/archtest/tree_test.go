package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
)

// file is what the rules need to know of one Go file.
type file struct {
	path, pkg string // relative to the module
	test      bool
	generated bool
	lines     int
	imports   []string
	inits     int
	// concurrent: it begins goroutines. looks: its TestMain looks for those that were left behind.
	concurrent, looks bool
	// connects are the calls that open sessions with PostgreSQL.
	connects     []string
	functions    []function
	undocumented []string
}

type function struct {
	name  string
	lines int
}

// readTree parses every Go file of the module, whatever its build tags.
func readTree(root string) ([]file, error) {
	var files []file
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); path != root && (strings.HasPrefix(name, ".") || name == "testdata" ||
				name == "node_modules" || name == "bin") {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		f, err := readFile(root, path)
		files = append(files, f)
		return err
	})
	return files, err
}

func readFile(root, path string) (file, error) {
	rel, err := filepath.Rel(root, path)
	if err != nil {
		return file{}, err
	}
	set := token.NewFileSet()
	tree, err := parser.ParseFile(set, path, nil, parser.ParseComments)
	if err != nil {
		return file{}, fmt.Errorf("parse %s: %w", rel, err)
	}
	f := file{
		path: filepath.ToSlash(rel), pkg: filepath.ToSlash(filepath.Dir(rel)), test: strings.HasSuffix(rel, "_test.go"),
		generated: ast.IsGenerated(tree), lines: set.File(tree.Pos()).LineCount(),
	}
	for _, spec := range tree.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return file{}, fmt.Errorf("parse %s: %w", rel, err)
		}
		f.imports = append(f.imports, imported)
	}
	for _, d := range tree.Decls {
		f.declare(set, d)
	}
	ast.Inspect(tree, f.inspect)
	return f, nil
}

// opens are the functions that open sessions with PostgreSQL: by an address alone, or by a
// configuration.
var opens = map[string]int{
	"pgx.Connect": byAddress, "pgxpool.New": byAddress, "pgconn.Connect": byAddress, "sql.Open": byAddress,
	"pgx.ConnectConfig": byConfig, "pgxpool.NewWithConfig": byConfig, "pgconn.ConnectConfig": byConfig,
	"stdlib.OpenDB": byConfig, "stdlib.OpenDBFromPool": byConfig,
}

const (
	byAddress = iota + 1
	byConfig
)

// inspect looks for what begins goroutines (also by the Go of a wait group or an error group), and
// for who asks afterwards what became of them.
func (f *file) inspect(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.GoStmt:
		f.concurrent = true
	case *ast.SelectorExpr:
		of, _ := n.X.(*ast.Ident)
		f.concurrent = f.concurrent || n.Sel.Name == "Go"
		f.looks = f.looks || of != nil && (of.Name == "testkit" && n.Sel.Name == "Main" || of.Name == "goleak")
		if of != nil && opens[of.Name+"."+n.Sel.Name] != 0 {
			f.connects = append(f.connects, of.Name+"."+n.Sel.Name)
		}
	}
	return true
}

func (f *file) declare(set *token.FileSet, d ast.Decl) {
	fn, ok := d.(*ast.FuncDecl)
	if !ok {
		f.declareNames(d.(*ast.GenDecl))
		return
	}
	if fn.Name.Name == "init" && fn.Recv == nil {
		f.inits++
	}
	if fn.Body != nil {
		lines := set.Position(fn.End()).Line - set.Position(fn.Pos()).Line + 1
		f.functions = append(f.functions, function{fn.Name.Name, lines})
	}
	if fn.Name.IsExported() && fn.Recv == nil && fn.Doc == nil {
		f.undocumented = append(f.undocumented, fn.Name.Name)
	}
}

// declareNames finds exported types, constants and variables that neither they nor their group say
// anything about.
func (f *file) declareNames(d *ast.GenDecl) {
	for _, s := range d.Specs {
		switch s := s.(type) {
		case *ast.TypeSpec:
			if s.Name.IsExported() && d.Doc == nil && s.Doc == nil {
				f.undocumented = append(f.undocumented, s.Name.Name)
			}
		case *ast.ValueSpec:
			if s.Names[0].IsExported() && d.Doc == nil && s.Doc == nil && s.Comment == nil {
				f.undocumented = append(f.undocumented, s.Names[0].Name)
			}
		}
	}
}
