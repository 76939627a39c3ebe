package config

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// maxFile is the most bytes a configuration may have; more is surely the wrong file.
const maxFile = 1 << 20

// purpose is what a configuration is loaded for: who is strict about what.
type purpose struct {
	secrets  bool // read and check sources, their secrets and the files that are named
	demo     bool // demo secrets may be used
	database bool // database.url must be named
	ingest   bool // this process takes deliveries, so that it needs the files of ingest.tls
	// files remembers what was read; nil: nobody asks.
	files *files
	// environ are all variables as os.Environ returns them; nil: unknown, so that none is checked.
	environ []string
}

// Load reads a file and the environment for a daemon in production: everything is checked, secrets are read, demo
// secrets are refused. An empty path reads the environment alone. The error joins every problem there is, each with its
// file and line, or the variable.
func Load(path string) (*Config, error) {
	return NewLoader(path, ForGateway, nil).Load()
}

// LoadProcessor is Load for a process that takes no deliveries: the files of ingest.tls need not be there.
func LoadProcessor(path string) (*Config, error) {
	return NewLoader(path, ForProcessor, nil).Load()
}

// LoadDev is Load for `postern dev`: the database may be left to it and demo secrets are allowed.
func LoadDev(path string) (*Config, error) {
	return NewLoader(path, ForDev, nil).Load()
}

// LoadOperator is Load for commands that only need to find the database: sources are not checked and no secret is
// read, so that an operator needs no access to them.
func LoadOperator(path string) (*Config, error) {
	return loadFile(path, purpose{database: true})
}

// LoadBeside is LoadOperator where a dev instance is named as well, so that the file need not name its database.
func LoadBeside(path string) (*Config, error) {
	return loadFile(path, purpose{})
}

// LoadSources is LoadOperator for commands that read events as their sources' providers do: what makes the providers is checked, and no secret is read.
// The database may be left to a dev instance.
func LoadSources(path string) (*Config, error) {
	c, err := loadFile(path, purpose{})
	if err != nil {
		return nil, err
	}
	var bad []error
	for _, name := range sortedKeys(c.Sources) {
		p, err := c.Sources[name].provider(name)
		if p == nil && err == nil {
			err = &Problem{Path: "sources." + name + ".provider", Msg: unknownProvider(c.Sources[name].Provider)}
		} else if p != nil {
			err = errors.Join(err, c.Sources[name].checkAPI(name, p, false))
		}
		bad = append(bad, err)
	}
	return c, c.Locate(errors.Join(bad...))
}

// Parse is Load of bytes and a given environment.
func Parse(b []byte, env func(string) string) (*Config, error) {
	return parse("", b, env, purpose{secrets: true, database: true, ingest: true})
}

// ParseEnviron is Parse with a whole environment, as os.Environ returns it: variables that set nothing are found too.
func ParseEnviron(b []byte, environ []string) (*Config, error) {
	return parse("", b, lookup(environ), purpose{secrets: true, database: true, ingest: true, environ: environ})
}

func loadFile(path string, p purpose) (*Config, error) {
	p.environ = os.Environ()
	if path == "" {
		return parse("", nil, os.Getenv, p)
	}
	b, err := p.files.read(path, readFile)
	if err != nil {
		return nil, err
	}
	return parse(path, b, os.Getenv, p)
}

func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("read configuration: %w: name a file that is there, or write one with `postern init`", err)
	case err != nil:
		return nil, fmt.Errorf("read configuration: %w", err)
	case info.IsDir():
		return nil, fmt.Errorf("read configuration %s: it is a folder: name a file in it", path)
	case info.Size() > maxFile:
		return nil, fmt.Errorf("read configuration %s: a file of at most %d bytes is expected", path, maxFile)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w: name a file that this account may read", err)
	}
	return b, nil
}

// parse decodes, overrides, completes, checks and reads secrets, in that order. What one step finds wrong does not keep the
// next from looking, so that a person reads all of it at once.
func parse(name string, b []byte, env func(string) string, p purpose) (*Config, error) {
	found := &findings{places: places{file: name}}
	if len(b) > maxFile {
		return nil, found.wrap(&Problem{Msg: fmt.Sprintf("more than %d bytes: surely not a configuration", maxFile)})
	}
	c := &Config{files: p.files}
	asked := map[string]bool{}
	ask := env
	env = func(name string) string { asked[name] = true; return ask(name) }
	body, err := read(b)
	if err != nil {
		return nil, found.wrap(err)
	}
	if body != nil {
		found.root = body
		found.add(expand(body, env, p))
		found.add(decode(body, c))
	}
	over := &overrides{env: env, set: map[string]string{}}
	over.apply(reflect.ValueOf(c).Elem(), nil)
	found.env = over.set
	found.add(errors.Join(over.bad...))
	c.Complete()
	found.add(check(c, p))
	if p.secrets {
		found.add(readSecrets(c, env, p))
		found.add(checkFiles(c, p))
		found.add(checkSources(c))
	}
	var slips error
	c.idle, slips = checkVariables(p.environ, asked, over.open)
	found.add(slips)
	if err := found.err(); err != nil {
		return nil, err
	}
	c.places = &found.places
	return c, nil
}

// read parses YAML; nil for a file that says nothing. The YAML library panics on some malformed documents (testdata/fuzz has
// them), which is the file's fault and must read like it.
func read(b []byte) (body ast.Node, err error) {
	defer malformed(&err)
	file, err := parser.ParseBytes(b, 0)
	if err != nil {
		return nil, syntaxProblem(err, b)
	}
	if len(file.Docs) > 1 {
		return nil, &Problem{Msg: "more than one YAML document: keep one"}
	}
	if len(file.Docs) == 0 || file.Docs[0].Body == nil || file.Docs[0].Body.Type() == ast.NullType || file.Docs[0].Body.Type() == ast.CommentType {
		return nil, nil
	}
	return file.Docs[0].Body, nil
}

func malformed(err *error) {
	if recover() != nil {
		*err = &Problem{Msg: "cannot be read as YAML: a value is malformed; compare with what `postern init` writes"}
	}
}

// decode reads the document strictly: unknown keys are errors. The YAML library stops at the first; then the document is
// read again value by value.
func decode(body ast.Node, c *Config) (err error) {
	defer malformed(&err)
	first := yaml.NewDecoder(strings.NewReader(""), yaml.Strict()).DecodeFromNode(body, c)
	if first == nil {
		return nil
	}
	*c = Config{}
	each := &valueReader{}
	each.read(body, reflect.ValueOf(c).Elem())
	if len(each.bad) == 0 {
		return syntaxProblem(first, nil)
	}
	return errors.Join(each.bad...)
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
