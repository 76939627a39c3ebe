// Package archtest holds the import rules of the project and the tests that enforce them. A new
// package needs a line here.
package archtest

import "strings"

const module = "github.com/postern-gateway/postern"

// rule describes a package, or every package of a pattern that ends in /*.
type rule struct {
	path string
	// layer: a package imports only packages of lower layers.
	layer int
	// why says what the package does, or gives the reason for its layer.
	why string
}

// testOnly is the first layer of the packages that only tests, and each other, may import.
const testOnly = 200

// rules lists the packages of the project, roughly from the top down. The first rule that fits a
// package applies.
var rules = []rule{
	{"internal/archtest", testOnly, "tests the rules of the code base: imports, names, layout"},
	{"internal/testkit", testOnly, "provides databases, servers and faults for tests"},
	{"internal/testkit/applied", testOnly + 2, "creates logs whose events are applied, for tests"},
	{"internal/testkit/reconciled", testOnly + 3, "creates sources whose API reconciliations read, for tests"},
	{"internal/testkit/fakeapi", testOnly, "provides the server, clock and faults that all fake provider APIs share"},
	{"internal/testkit/golden", testOnly, "compares generated files with their expected content"},
	{"internal/testkit/*", testOnly + 1, "simulates providers, destinations and installations for tests"},
	{"internal/provider/providertest", testOnly + 1, "contains the tests that every provider must pass"},
	{"test/*", testOnly + 2, "tests real processes: end-to-end, chaos and browser tests"},
	{"bench/reference/refer", testOnly + 3, "contains the code that the reference programs share"},
	{"bench/reference/*", testOnly + 4, "frozen programs to compare Postern with; they import no code of it"},
	{"bench/reference", testOnly + 4, "checks that the reference programs are unchanged"},
	{"bench/load", testOnly + 4, "starts and loads the measured programs, and measures them"},
	{"bench/suite", testOnly + 5, "defines the rows of the benchmark and their bounds, and runs them"},
	{"bench", testOnly + 6, "the benchmark, a separate module, so that Postern does not depend on its libraries"},

	{"cmd/*", 100, "the programs: they parse flags and call app or a command"},
	{"internal/app", 90, "wires the parts into processes and contains no logic of them"},
	{"internal/console", 85, "serves the web console for operators"},
	{"internal/admin", 80, "serves the JSON API for operators"},
	{"internal/operations", 78, "what operators see and change, with typed parameters; commands and admin call it"},
	{"internal/verify", 75, "checks the integrity of stored data"},
	{"internal/doctor", 75, "checks the configuration, the machine, PostgreSQL and NATS"},
	{"internal/retention", 75, "drops old partitions, after it has stored retained objects and archives"},
	{"internal/notify", 75, "sends alerts to operators"},
	{"internal/ingest", 70, "accepts webhook deliveries and appends their events to the log"},
	{"internal/replay", 70, "applies stored events again"},
	{"internal/rebuild", 70, "rebuilds the objects of a source from the log, alongside the live ones"},
	{"internal/archive", 70, "exports events to files and imports them into another log"},
	{"internal/redaction", 70, "redacts events and the data derived from them"},
	{"internal/reconcile", 70, "reads the provider's API and adds to the log what webhooks did not bring"},
	{"internal/objectscan", 68, "compares the mirror with the provider's lists of objects, for reconcile"},
	{"internal/refetch", 65, "reads single objects again from the provider's API, and keeps the queue of them"},
	{"internal/effects/jobs/runner", 70, "executes planned effects"},
	{"internal/effects/jobs/windows", 70, "plans the effects of rules that are on a schedule"},
	{"internal/effects/jobs/backtest", 70, "evaluates rules against past changes, without effects"},
	{"internal/views", 65, "creates typed views of the mirror, with a column for each field"},
	{"internal/processor", 65, "reads the stream, applies its events, and runs the republisher and the sender"},
	{"internal/apply", 60, "decides events and commits objects, outcomes, changes and planned effects"},
	{"internal/effects/rules", 34, "compiles the conditions and templates of effect rules"},
	{"internal/effects", 50, "plans effects and writes the ledger; the processor uses it"},
	{"internal/stream", 50, "publishes to and reads from JetStream"},
	{"internal/versioning", 50, "compares versions and applies states to objects"},
	{"internal/providerapi", 50, "calls a provider's API within the rate budget that all processes share"},
	{"internal/changes", 55, "numbers the changes of the mirror, for readers by HTTP and SQL"},
	{"internal/watermarks", 50, "stores until when the log and the mirror are complete"},
	{"internal/runs", 50, "stores and executes runs, with their cursors and schedules"},
	{"internal/activity", 50, "the running processes, and how much they do, as they report it for operators"},
	{"internal/adminauth", 50, "tokens, roles, idempotency keys and the audit trail of operators"},
	{"internal/spool", 50, "stores deliveries on disk while PostgreSQL is unavailable"},
	{"internal/events", 40, "stores and reads the append-only log of events"},
	{"internal/provider/declared", 31, "implements a provider from a declaration; providers are built from it"},
	{"internal/config/gendoc", 36, "writes the configuration reference from the fields of config"},
	{"internal/config", 35, "reads the configuration; it is above the providers, because it calls their checks"},
	{"internal/provider/all", 33, "lists all providers"},
	{"internal/provider/rest", 32, "reads an API that the configuration of a source describes"},
	{"internal/provider/*", 32, "one package for each provider"},
	{"internal/provider", 30, "defines the interface of a provider"},
	{"internal/idempotency", 20, "the header Idempotency-Key; a provider reads it too"},
	{"internal/signature", 20, "signs and verifies with declared signature schemes"},
	{"internal/mail", 20, "builds messages and sends them to a mail server"},
	{"internal/canonical", 20, "reads and compares JSON without loss of precision"},
	{"internal/settings", 10, "the values of the configuration file, and the problems with them"},
	{"internal/timetable", 5, "computes when something is due, from cron expressions and time zones"},
	{"internal/postgres", 5, "connects to PostgreSQL, checks it and migrates it"},
	{"internal/telemetry/rates", 5, "reads the metrics of processes and computes rates, for postern top"},
	{"internal/telemetry", 5, "provides log, metrics and traces"},
	{"internal/terminal", 1, "escapes control characters in output for a terminal"},
	{"internal/lifecycle", 1, "starts and stops the parts of a process in order, with timeouts"},
	{"migrations", 1, "embeds the SQL of the schema"},
	{"examples/sink", testOnly + 2, "the test sink as a program, to try examples and rules; it imports testkit"},
	{"examples/*", 0, "programs of users, which import no package of Postern"},
}

// confined lists the modules that only the named packages may import, except in tests. A module can
// then be replaced with a change of few files.
var confined = []struct {
	module   string
	packages []string
	why      string
}{
	{"github.com/labstack/echo", []string{"internal/ingest", "internal/admin", "internal/app",
		"bench/*"}, "its support ends soon, so only packages that serve HTTP import it"},
	{"github.com/nats-io/nats-server", []string{"internal/stream", "internal/testkit", "internal/testkit/*"},
		"the embedded server belongs to the package stream"},
	{"github.com/nats-io/nats.go", []string{"internal/stream", "internal/testkit", "examples/*", "bench/*"},
		"other packages use the types of the package stream"},
	{"go.opentelemetry.io/otel/sdk", []string{"internal/telemetry"},
		"other packages use the OpenTelemetry API only, which costs nothing if no traces are sent"},
	{"go.opentelemetry.io/otel/exporters", []string{"internal/telemetry"}, "only telemetry exports traces"},
	{"github.com/expr-lang/expr", []string{"internal/effects/rules"},
		"only conditions and templates of rules are expressions"},
	{"github.com/hashicorp/cronexpr", []string{"internal/timetable"},
		"it ignores clock changes, and its Next is not safe for concurrent use; timetable corrects both"},
	{"github.com/pressly/goose", []string{"internal/postgres"}, "only postgres applies migrations"},
}

// testModules must not be part of a program: their code, flags and globals are made for tests.
var testModules = []string{
	"pgregory.net/rapid", "go.uber.org/goleak", "github.com/google/go-cmp", "github.com/stripe/stripe-go",
	"github.com/getkin/kin-openapi", "github.com/santhosh-tekuri/jsonschema",
	module + "/internal/testkit", module + "/internal/provider/providertest",
}

// fits returns true if a pattern matches a package path that is relative to the module.
func fits(pattern, path string) bool {
	parent, wildcard := strings.CutSuffix(pattern, "/*")
	return path == pattern || wildcard && strings.HasPrefix(path, parent+"/")
}

// within returns true if an import path belongs to a module. This includes major versions (/v4) and
// sub-packages.
func within(path, module string) bool {
	return path == module || strings.HasPrefix(path, module+"/")
}

func ruleOf(path string) (rule, bool) {
	for _, r := range rules {
		if fits(r.path, path) {
			return r, true
		}
	}
	return rule{}, false
}

// violation returns the reason why a file of package from must not import a path; "" if it may.
// test is true for a test file, which may import everything.
func violation(from, imported string, test bool) string {
	if test {
		return ""
	}
	for _, c := range confined {
		if within(imported, c.module) && !allowed(c.packages, from) {
			return "only " + strings.Join(c.packages, ", ") + " may: " + c.why
		}
	}
	to, isOwn := strings.CutPrefix(imported, module+"/")
	if !isOwn {
		return ""
	}
	importedRule, _ := ruleOf(to) // another test reports a package without a rule
	fromRule, _ := ruleOf(from)
	switch {
	case importedRule.layer >= testOnly && fromRule.layer < testOnly:
		return "only tests may; the package " + importedRule.why
	case importedRule.layer >= fromRule.layer:
		return "a package imports only lower layers, and " + importedRule.path + " is not below " + fromRule.path
	}
	return ""
}

func allowed(packages []string, from string) bool {
	for _, p := range packages {
		if fits(p, from) {
			return true
		}
	}
	return false
}
