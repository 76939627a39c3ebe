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
	"github.com/postern-gateway/postern/internal/settings"
)

// maxFile is the largest accepted configuration in bytes. A larger file is the wrong one.
const maxFile = 1 << 20

// loadOptions say what a load checks.
type loadOptions struct {
	secrets  bool // read and check sources, their secrets and the configured files
	demo     bool // allow demo secrets
	database bool // require database.url
	ingest   bool // this process accepts deliveries, so it needs the files of ingest.tls
	// files records which files were read; nil: no record is needed.
	fileTracker *fileTracker
	// environ holds all variables as os.Environ returns them; nil: unknown, so none is checked.
	environ []string
}

// Load reads a file and the environment for a production daemon. It checks everything, reads
// secrets and rejects demo secrets. An empty path reads the environment alone. The error joins
// every problem, each with its file and line, or its variable.
func Load(path string) (*Config, error) {
	return NewLoader(path, ForGateway, nil).Load()
}

// LoadProcessor is Load for a process that accepts no deliveries: it does not need the files of
// ingest.tls.
func LoadProcessor(path string) (*Config, error) {
	return NewLoader(path, ForProcessor, nil).Load()
}

// LoadDev is Load for `postern dev`: the database is optional and demo secrets are allowed.
func LoadDev(path string) (*Config, error) {
	return NewLoader(path, ForDev, nil).Load()
}

// LoadOperator is Load for commands that only need the database. It does not check sources and
// reads no secret, so an operator needs no access to secrets.
func LoadOperator(path string) (*Config, error) {
	return loadFile(path, loadOptions{database: true})
}

// LoadWithInstance is LoadOperator for commands that also name a dev instance, so the file need not
// name a database.
func LoadWithInstance(path string) (*Config, error) {
	return loadFile(path, loadOptions{})
}

// LoadSources is LoadOperator for commands that read events as their sources' providers do. It
// checks the settings of providers and reads no secret. The database may come from a dev instance.
func LoadSources(path string) (*Config, error) {
	c, err := loadFile(path, loadOptions{})
	if err != nil {
		return nil, err
	}
	var bad []error
	for _, name := range sortedKeys(c.Sources) {
		p, err := c.Sources[name].provider(name)
		if p == nil && err == nil {
			err = &settings.Problem{Path: "sources." + name + ".provider",
				Msg: unknownProvider(c.Sources[name].Provider)}
		} else if p != nil {
			err = errors.Join(err, c.Sources[name].checkAPI(name, p, false))
		}
		bad = append(bad, err)
	}
	return c, c.Locate(errors.Join(bad...))
}

// Parse is Load for given bytes and a given environment.
func Parse(b []byte, env func(string) string) (*Config, error) {
	return parse("", b, env, loadOptions{secrets: true, database: true, ingest: true})
}

// ParseEnviron is Parse with a complete environment, as os.Environ returns it. It also finds
// variables that set nothing.
func ParseEnviron(b []byte, environ []string) (*Config, error) {
	return parse("", b, lookupIn(environ), loadOptions{secrets: true, database: true, ingest: true, environ: environ})
}

func loadFile(path string, p loadOptions) (*Config, error) {
	p.environ = os.Environ()
	if path == "" {
		return parse("", nil, os.Getenv, p)
	}
	b, err := p.fileTracker.read(path, readFile)
	if err != nil {
		return nil, err
	}
	return parse(path, b, os.Getenv, p)
}

func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("read configuration: %w: name an existing file, or create one with `postern init`", err)
	case err != nil:
		return nil, fmt.Errorf("read configuration: %w", err)
	case info.IsDir():
		return nil, fmt.Errorf("read configuration %s: it is a folder: name a file in it", path)
	case info.Size() > maxFile:
		return nil, fmt.Errorf("read configuration %s: the file has more than %d bytes, so it is probably not a "+
			"configuration", path, maxFile)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w: name a file that this account may read", err)
	}
	return b, nil
}

// parse decodes, overrides, completes, checks and reads secrets, in that order. A problem in one
// step does not stop the next, so that all problems are reported together.
func parse(name string, b []byte, env func(string) string, p loadOptions) (*Config, error) {
	found := &findings{locator: locator{file: name}}
	if len(b) > maxFile {
		return nil, found.locate(&settings.Problem{Msg: fmt.Sprintf("more than %d bytes: probably not a configuration",
			maxFile)})
	}
	c := &Config{fileTracker: p.fileTracker}
	requested := map[string]bool{}
	getenv := env
	env = func(name string) string { requested[name] = true; return getenv(name) }
	body, err := parseYAML(b)
	if err != nil {
		return nil, found.locate(err)
	}
	if body != nil {
		found.root = body
		found.add(expand(body, env, p))
		found.add(decode(body, c))
	}
	over := &overrides{env: env, paths: map[string]string{}}
	over.apply(reflect.ValueOf(c).Elem(), nil)
	found.env = over.paths
	found.add(errors.Join(over.errs...))
	c.Complete()
	found.add(checkConfig(c, p))
	if p.secrets {
		found.add(readSecrets(c, env, p))
		found.add(checkFiles(c, p))
		found.add(checkSources(c))
	}
	var slips error
	c.unusedVariables, slips = checkVariables(p.environ, requested, over.openPrefixes)
	found.add(slips)
	if err := found.err(); err != nil {
		return nil, err
	}
	c.locator = &found.locator
	return c, nil
}

// parseYAML parses the file; it returns nil for an empty one. The YAML library panics on some
// malformed documents (testdata/fuzz has them). This is reported as a problem of the file.
func parseYAML(b []byte) (body ast.Node, err error) {
	defer recoverMalformed(&err)
	file, err := parser.ParseBytes(b, 0)
	if err != nil {
		return nil, syntaxProblem(err, b)
	}
	if len(file.Docs) > 1 {
		return nil, &settings.Problem{Msg: "more than one YAML document: keep one"}
	}
	if len(file.Docs) == 0 || file.Docs[0].Body == nil || file.Docs[0].Body.Type() == ast.NullType ||
		file.Docs[0].Body.Type() == ast.CommentType {
		return nil, nil
	}
	return file.Docs[0].Body, nil
}

func recoverMalformed(err *error) {
	if recover() != nil {
		*err = &settings.Problem{Msg: "cannot be read as YAML: a value is malformed; compare with the output of " +
			"`postern init`"}
	}
}

// decode reads the document strictly: unknown keys are errors. The YAML library stops at the first
// error. The document is then read again value by value, to find all.
func decode(body ast.Node, c *Config) (err error) {
	defer recoverMalformed(&err)
	first := yaml.NewDecoder(strings.NewReader(""), yaml.Strict()).DecodeFromNode(body, c)
	if first == nil {
		return nil
	}
	*c = Config{}
	each := &valueReader{}
	each.read(body, reflect.ValueOf(c).Elem())
	if len(each.errs) == 0 {
		return syntaxProblem(first, nil)
	}
	return errors.Join(each.errs...)
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
