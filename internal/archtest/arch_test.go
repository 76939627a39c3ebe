package archtest

import (
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

func tree(t *testing.T) []file {
	t.Helper()
	files, err := readTree(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 20 {
		t.Fatalf("found %d Go files: this is not the module's root", len(files))
	}
	return files
}

func TestRules_everyPackage_isListed(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, f := range tree(t) {
		if _, ok := ruleOf(f.pkg); !ok && !seen[f.pkg] {
			seen[f.pkg] = true
			t.Errorf("%s: not in the table of rules.go; add it with a layer and a reason", f.pkg)
		}
	}
}

func TestImports_layers_pointDown(t *testing.T) {
	t.Parallel()
	for _, f := range tree(t) {
		for _, imported := range f.imports {
			if why := violation(f.pkg, imported, f.test); why != "" {
				t.Errorf("%s imports %s: %s", f.path, imported, why)
			}
		}
	}
}

// A session that is opened by an address alone has the settings of its database and login.
func TestSessions_openedByProducts_haveOurSettings(t *testing.T) {
	t.Parallel()
	found := 0
	for _, f := range tree(t) {
		if f.test || !strings.HasPrefix(f.pkg, "internal/") && !strings.HasPrefix(f.pkg, "cmd/") ||
			strings.HasPrefix(f.pkg, "internal/testkit") {
			continue
		}
		for _, call := range f.connects {
			found++
			if opens[call] == byAddress || f.pkg != "internal/postgres" {
				t.Errorf("%s calls %s: sessions are opened in internal/postgres, by a configuration that configure "+
					"has set", f.path, call)
			}
		}
	}
	if found < 4 {
		t.Errorf("%d calls open sessions: is each of the functions listed?", found)
	}
}

func TestPackages_initFunctions_areAbsent(t *testing.T) {
	t.Parallel()
	for _, f := range tree(t) {
		if !f.test && f.inits > 0 {
			t.Errorf("%s has an init function: what a program does begins in main", f.path)
		}
	}
}

func TestPrograms_imports_containNoTestCode(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", module+"/cmd/...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	paths := strings.Fields(string(out))
	for _, program := range []string{"gateway", "processor", "postern"} {
		if !slices.Contains(paths, module+"/cmd/"+program) {
			t.Errorf("the list has no program %s", program)
		}
	}
	for _, path := range paths {
		for _, m := range testModules {
			if within(path, m) {
				t.Errorf("a program is built with %s", path)
			}
		}
	}
}

// Goroutines have an owner that waits for them; whether it did is seen after the tests of their
// package.
func TestPackages_goroutineLeaks_areChecked(t *testing.T) {
	t.Parallel()
	concurrent, tested, looks := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, f := range tree(t) {
		concurrent[f.pkg] = concurrent[f.pkg] || !f.test && f.concurrent
		tested[f.pkg] = tested[f.pkg] || f.test
		looks[f.pkg] = looks[f.pkg] || f.test && f.looks
	}
	found := 0
	for pkg := range concurrent {
		if !concurrent[pkg] || !tested[pkg] || within(pkg, "bench") {
			continue
		}
		if found++; !looks[pkg] {
			t.Errorf("%s starts goroutines, and no test checks that they end: write func TestMain(m "+
				"*testing.M) { testkit.Main(m) }", pkg)
		}
	}
	if found < 10 {
		t.Errorf("%d packages begin goroutines: they are not found", found)
	}
}

// The rules themselves: what each must refuse and let pass.
func TestViolation(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		from, imported string
		test, refused  bool
	}{
		{"internal/app", module + "/internal/ingest", false, false},
		{"internal/ingest", module + "/internal/app", false, true},
		{"internal/stream", module + "/internal/versioning", false, true}, // the same layer
		{"internal/provider/stripe", module + "/internal/provider", false, false},
		{"internal/provider/stripe", module + "/internal/provider/shopify", false, true},
		{"internal/events", module + "/internal/testkit", false, true},
		{"internal/events", module + "/internal/testkit", true, false},
		{"internal/testkit", module + "/internal/postgres", false, false},
		{"internal/testkit/sim", module + "/internal/testkit", false, false},
		{"internal/testkit", module + "/internal/testkit/sim", false, true},
		{"internal/processor", "github.com/labstack/echo/v4", false, true},
		{"internal/admin", "github.com/labstack/echo/v4/middleware", false, false},
		{"internal/processor", "github.com/nats-io/nats.go/jetstream", false, true},
		{"examples/consume-go", "github.com/nats-io/nats.go", false, false},
		{"examples/consume-go", module + "/internal/stream", false, true},
		{"internal/app", "github.com/nats-io/nats-server/v2/server", false, true},
		{"internal/processor", "go.opentelemetry.io/otel/sdk/trace", false, true},
		{"internal/processor", "go.opentelemetry.io/otel/trace", false, false},
		{"internal/app", "go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp", false, true},
		{"internal/postgres", "strings", false, false},
	} {
		if got := violation(c.from, c.imported, c.test); (got != "") != c.refused {
			t.Errorf("%s imports %s (test %t): %q, want refused %t", c.from, c.imported, c.test, got, c.refused)
		}
	}
}

func TestBudgets(t *testing.T) {
	t.Parallel()
	var fileLines, functionLines []int
	product, tests := 0, 0
	for _, f := range tree(t) {
		if f.generated {
			continue
		}
		fileLines = append(fileLines, f.lines)
		if f.lines > 600 {
			t.Errorf("%s has %d lines, more than 600: cut it by subject", f.path, f.lines)
		}
		if f.test {
			tests += f.lines
			continue
		}
		product += f.lines
		for _, fn := range f.functions {
			functionLines = append(functionLines, fn.lines)
			if fn.lines > 60 {
				t.Logf("over budget: %s: %s has %d lines", f.path, fn.name, fn.lines)
			}
		}
		for _, name := range f.undocumented {
			t.Logf("over budget: %s: exported %s has no comment", f.path, name)
		}
	}
	t.Logf("%d files, median %d lines (budget 150); %d functions, median %d lines (budget 12); test:code %.2f "+
		"(budget 1.0 to 1.5)", len(fileLines), median(fileLines), len(functionLines), median(functionLines),
		float64(tests)/float64(max(product, 1)))
}

func median(n []int) int {
	if len(n) == 0 {
		return 0
	}
	slices.Sort(n)
	return n[len(n)/2]
}

const architecturePage = root + "/docs/explanation/architecture.md"

// The page names every package of Postern, so that readers find the one that they look for.
func TestArchitecture_packageTable_namesEveryPackage(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(architecturePage)
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Packages\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var named []string
	for _, m := range regexp.MustCompile("`([a-z/*]+)`").FindAllStringSubmatch(section, -1) {
		named = append(named, "internal/"+m[1])
	}
	for _, r := range rules {
		if strings.HasPrefix(r.path, "internal/") && r.layer < testOnly &&
			!slices.ContainsFunc(named, func(pattern string) bool { return fits(pattern, r.path) }) {
			t.Errorf("%s: the table of packages does not name %s", architecturePage, r.path)
		}
	}
}

// The page says which part owns each table of the schema.
func TestArchitecture_ownersOfTables_areComplete(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(architecturePage)
	if err != nil {
		t.Fatal(err)
	}
	schema, err := os.ReadFile(root + "/migrations/schema.sql")
	if err != nil {
		t.Fatal(err)
	}
	tables := regexp.MustCompile(`(?m)^CREATE TABLE postern\.([a-z_]+) \(`).FindAllStringSubmatch(string(schema), -1)
	if len(tables) < 30 {
		t.Errorf("the schema has %d tables: they are not found", len(tables))
	}
	for _, table := range tables {
		if table[1] != "schema_migrations" && !strings.Contains(string(text), "`"+table[1]+"`") {
			t.Errorf("%s does not say who owns the table %s", architecturePage, table[1])
		}
	}
}

// The path of a delivery on the page names functions where they are.
func TestArchitecture_pathOfADelivery_namesFunctions(t *testing.T) {
	t.Parallel()
	functions := map[string]bool{}
	for _, f := range tree(t) {
		for _, fn := range f.functions {
			functions[f.path+" "+fn.name] = true
		}
	}
	text, err := os.ReadFile(architecturePage)
	if err != nil {
		t.Fatal(err)
	}
	steps := regexp.MustCompile("(?m)^\\| [0-9]+ \\| `([A-Za-z]+)` \\| `([a-z/_.]+)` \\|").FindAllStringSubmatch(string(text), -1)
	if len(steps) != 20 {
		t.Errorf("the path has %d steps, want 20", len(steps))
	}
	for _, step := range steps {
		if !functions[step[2]+" "+step[1]] {
			t.Errorf("%s has no function %s", step[2], step[1])
		}
	}
}

// The tests that the explanation pages name are there, in the package that they name, so that
// readers can check each promise.
func TestPages_namedTests_exist(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, f := range tree(t) {
		for _, fn := range f.functions {
			known[fn.name] = known[fn.name] || f.test
			known[path.Base(f.pkg)+"."+fn.name] = known[path.Base(f.pkg)+"."+fn.name] || f.test
		}
	}
	for _, page := range []string{"guarantees.md", "versions.md", "reconciliation.md", "effects.md", "security.md"} {
		text, err := os.ReadFile(root + "/docs/explanation/" + page)
		if err != nil {
			t.Fatal(err)
		}
		named := regexp.MustCompile("`((?:[a-z/_]+\\.)?Test[A-Za-z0-9_]+)`").FindAllStringSubmatch(string(text), -1)
		if len(named) < 8 {
			t.Errorf("%s names %d tests", page, len(named))
		}
		for _, m := range named {
			if !known[path.Base(m[1])] {
				t.Errorf("%s names %s, which is no test", page, m[1])
			}
		}
	}
}
