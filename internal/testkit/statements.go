package testkit

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/postern-gateway/postern/"

// Statements returns the SQL statements that a package of this module has as constants, by name:
// those whose names end in SQL and that begin with SELECT, INSERT, UPDATE, DELETE or WITH. dir is
// the folder of the package below the root of the module. Statements that are built when the
// program runs are not among them.
func Statements(dir string) map[string]string {
	all, err := readConstants(dir, map[string]*constants{})
	if err != nil {
		panic(err)
	}
	found := map[string]string{}
	for name := range all.values {
		if !strings.HasSuffix(name, "SQL") {
			continue
		}
		sql, err := all.text(name)
		if err != nil {
			panic(fmt.Sprintf("%s: %s: %v", dir, name, err))
		}
		verb, _, _ := strings.Cut(strings.TrimLeft(strings.TrimSpace(sql), "("), " ")
		if slices.Contains([]string{"SELECT", "INSERT", "UPDATE", "DELETE", "WITH"}, verb) {
			found[name] = sql
		}
	}
	return found
}

// Statement returns the only statement of a package that contains a text, whatever its white space.
func Statement(dir, has string) (found string) {
	for name, sql := range Statements(dir) {
		if !strings.Contains(strings.Join(strings.Fields(sql), " "), has) {
			continue
		}
		if found != "" {
			panic(fmt.Sprintf("%s of %s is not the only statement that contains %q", name, dir, has))
		}
		found = sql
	}
	if found == "" {
		panic(fmt.Sprintf("no statement of %s contains %q", dir, has))
	}
	return found
}

// PrepareStatements checks that statements fit the migrated schema.
func PrepareStatements(t testing.TB, statements map[string]string) {
	t.Helper()
	conn, err := Database(t).Pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for name, sql := range statements {
		if _, err := conn.Conn().Prepare(t.Context(), name, sql); err != nil {
			t.Errorf("%s: %v\n%s", name, err, sql)
		}
	}
}

// constants are the constants of a package.
type constants struct {
	values map[string]constant
	// packages are the packages that were read, by folder.
	packages map[string]*constants
}

// constant is the value of a constant, in a file with imports by name.
type constant struct {
	value   ast.Expr
	imports map[string]string
}

func readConstants(dir string, packages map[string]*constants) (*constants, error) {
	if c := packages[dir]; c != nil {
		return c, nil
	}
	root, err := moduleRoot()
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
	if err != nil {
		return nil, err
	}
	c := &constants{values: map[string]constant{}, packages: packages}
	packages[dir] = c
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		c.add(file)
	}
	return c, nil
}

func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	for err == nil {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no folder above has a go.mod")
		}
		dir = filepath.Dir(dir)
	}
	return "", err
}

func (c *constants) add(file *ast.File) {
	imports := map[string]string{}
	for _, i := range file.Imports {
		path, _ := strconv.Unquote(i.Path.Value)
		name := path[strings.LastIndex(path, "/")+1:]
		if i.Name != nil {
			name = i.Name.Name
		}
		imports[name] = path
	}
	for _, d := range file.Decls {
		decl, ok := d.(*ast.GenDecl)
		if !ok || decl.Tok != token.CONST {
			continue
		}
		for _, s := range decl.Specs {
			spec := s.(*ast.ValueSpec)
			for i, value := range spec.Values {
				c.values[spec.Names[i].Name] = constant{value, imports}
			}
		}
	}
}

// text returns the value of a constant text.
func (c *constants) text(name string) (string, error) {
	v, ok := c.values[name]
	if !ok {
		return "", fmt.Errorf("there is no constant %s", name)
	}
	return c.eval(v.value, v.imports)
}

func (c *constants) eval(e ast.Expr, imports map[string]string) (string, error) {
	switch e := e.(type) {
	case *ast.BasicLit:
		return strconv.Unquote(e.Value)
	case *ast.ParenExpr:
		return c.eval(e.X, imports)
	case *ast.Ident:
		return c.text(e.Name)
	case *ast.BinaryExpr:
		left, err := c.eval(e.X, imports)
		if err != nil {
			return "", err
		}
		right, err := c.eval(e.Y, imports)
		return left + right, err
	case *ast.SelectorExpr:
		other, err := readConstants(strings.TrimPrefix(imports[e.X.(*ast.Ident).Name], module), c.packages)
		if err != nil {
			return "", err
		}
		return other.text(e.Sel.Name)
	}
	return "", fmt.Errorf("a %T is not read here", e)
}
