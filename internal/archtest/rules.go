// Package archtest holds the rules of who may import whom and the test that keeps them. A new
// package needs a line here.
package archtest

import "strings"

const module = "github.com/postern-gateway/postern"

// rule is what a package, or every package of a pattern that ends in /*, may do.
type rule struct {
	path string
	// layer: a package imports only packages of lower layers.
	layer int
	// why the package exists, or why it lies where it does.
	why string
}

// testOnly packages may be imported by tests and by each other, never by product code.
const testOnly = 200

// rules are the packages of the project from the top down; the first that fits counts.
var rules = []rule{
	{"internal/archtest", testOnly, "these rules"},
	{"internal/testkit", testOnly, "databases, servers and faults for tests"},
	{"internal/testkit/applied", testOnly + 2, "logs whose events were applied, for tests"},
	{"internal/testkit/fakeapi", testOnly, "server, clock and faults of the fakes of providers' APIs"},
	{"internal/testkit/*", testOnly + 1, "simulations for tests"},
	{"internal/provider/providertest", testOnly, "what every provider must pass"},
	{"test/*", testOnly + 2, "end-to-end, chaos and browser tests"},
	{"bench/reference/refer", testOnly + 3, "what the references share"},
	{"bench/reference/*", testOnly + 4, "what Postern is measured beside: frozen programs that know nothing of ours"},
	{"bench/load", testOnly + 4, "signed deliveries, and how fast they are answered"},
	{"bench/machine", testOnly + 4, "starts what is measured and reads what it costs"},
	{"bench/suite", testOnly + 5, "the rows of the benchmark"},
	{"bench/profile", testOnly + 6, "profiles of what is measured"},
	{"bench/plan", testOnly + 6, "which rows there are, and what must hold"},
	{"bench/report", testOnly + 7, "tables and pictures"},
	{"bench/gate", testOnly + 7, "what became much worse"},
	{"bench/*", testOnly + 8, "programs of the benchmark"},
	{"bench", testOnly + 8, "the benchmark: a module of its own, so that no user has its libraries"},

	{"cmd/*", 100, "the programs: flags in, app or a command out"},
	{"internal/app", 90, "wiring only"},
	{"internal/admin", 80, "JSON API for operators"},
	{"internal/console", 80, "web console for operators"},
	{"internal/verify", 75, "compares all that is stored with what must hold of it"},
	{"internal/doctor", 75, "looks at what Postern stands on"},
	{"internal/retention", 75, "forgets what has become old, and keeps what must outlive it, in bases and archives"},
	{"internal/notify", 75, "tells people what needs one"},
	{"internal/ingest", 70, "a POST becomes durable events"},
	{"internal/replay", 70, "stored events again"},
	{"internal/rebuild", 70, "the mirror made anew from the log, beside the live one"},
	{"internal/archive", 70, "events as files: out of one log and into another"},
	{"internal/redaction", 70, "clears events for good, and what was made of them"},
	{"internal/reconcile", 70, "the provider's API as the source of truth"},
	{"internal/effects/runner", 70, "carries out planned effects"},
	{"internal/effects/windows", 70, "asks rules that are on a schedule"},
	{"internal/effects/hindsight", 70, "what rules would have wanted of stored events"},
	{"internal/processor", 60, "decide, apply, record, acknowledge; the auditor"},
	{"internal/effects/rules", 34, "what is written in rules of effects, compiled"},
	{"internal/effects", 50, "the ledger of effects and the planning of effects, used by the processor"},
	{"internal/stream", 50, "JetStream"},
	{"internal/versioning", 50, "which state is newer, and the objects that obey it"},
	{"internal/runs", 50, "ledger of runs, checkpoints, schedules"},
	{"internal/access", 50, "tokens: who may ask the admin interface"},
	{"internal/audit", 50, "who changed what, and why"},
	{"internal/idempotency", 50, "a request that is sent again is carried out once"},
	{"internal/spool", 50, "deliveries on disk while PostgreSQL is away"},
	{"internal/events", 40, "the append-only log"},
	{"internal/provider/declared", 31, "the provider that is data; folders of providers are made of it"},
	{"internal/config/gendoc", 36, "writes the reference page from config's fields"},
	{"internal/config", 35, "above providers, whose own checks it runs on a configured source"},
	{"internal/provider/all", 33, "the one list of providers"},
	{"internal/provider/rest", 32, "the API that is data; config makes it of what a source says"},
	{"internal/provider/*", 32, "one folder per provider"},
	{"internal/provider", 30, "what a provider means"},
	{"internal/idempotency/header", 20, "what the header Idempotency-Key says; a provider reads it too"},
	{"internal/signature", 20, "signature schemes as data"},
	{"internal/mail", 20, "messages, and the way to a mail server"},
	{"internal/canonical", 20, "JSON as exact values"},
	{"internal/timetable", 5, "when something is due: cron expressions in time zones"},
	{"internal/postgres", 5, "the way to PostgreSQL"},
	{"internal/telemetry", 5, "log, metrics and traces"},
	{"internal/terminal", 1, "output that a terminal shows and does not obey"},
	{"internal/lifecycle", 1, "start, stop, time out in order"},
	{"migrations", 1, "the schema as embedded SQL"},
	{"examples/sink", testOnly + 2, "the sinks of tests as a program, for the examples and whoever tries a rule"},
	{"examples/*", 0, "programs of users: they know the feeds and nothing of ours"},
}

// confined modules may be imported by the named packages alone (tests aside), so that replacing one
// is a change of few files.
var confined = []struct {
	module   string
	packages []string
	why      string
}{
	{"github.com/labstack/echo", []string{"internal/ingest", "internal/admin", "internal/console", "internal/app",
		"bench/*"}, "its support ends soon: only where HTTP is served"},
	{"github.com/nats-io/nats-server", []string{"internal/stream", "internal/testkit", "internal/testkit/*"},
		"the embedded server is a part of the stream"},
	{"github.com/nats-io/nats.go", []string{"internal/stream", "internal/testkit", "examples/*", "bench/*"},
		"everyone else speaks of streams and messages"},
	{"go.opentelemetry.io/otel/sdk", []string{"internal/telemetry"},
		"everyone else knows the interface alone, which costs nothing where no traces are sent"},
	{"go.opentelemetry.io/otel/exporters", []string{"internal/telemetry"}, "where traces go is nobody else's matter"},
	{"github.com/expr-lang/expr", []string{"internal/effects/rules"},
		"conditions and templates are all that is written in it"},
	{"github.com/hashicorp/cronexpr", []string{"internal/timetable"},
		"it knows nothing of changes of the clocks, and its Next is for one goroutine"},
	{"github.com/pressly/goose", []string{"internal/postgres"}, "how migrations are applied is nobody else's matter"},
}

// testModules must not reach a program: their code, flags and globals are made for tests.
var testModules = []string{
	"pgregory.net/rapid", "go.uber.org/goleak", "github.com/google/go-cmp", "github.com/stripe/stripe-go",
	module + "/internal/testkit", module + "/internal/provider/providertest",
}

// fits tells whether a package path relative to the module is the pattern's.
func fits(pattern, path string) bool {
	parent, deep := strings.CutSuffix(pattern, "/*")
	return path == pattern || deep && strings.HasPrefix(path, parent+"/")
}

// within tells whether an import path is a module's; major versions (/v4) and sub-packages
// included.
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

// violation explains why a file of package from must not import an import path, "" where it may.
// test: it is a test file.
func violation(from, imported string, test bool) string {
	if test {
		return ""
	}
	for _, c := range confined {
		if within(imported, c.module) && !allowed(c.packages, from) {
			return "only " + strings.Join(c.packages, ", ") + " may: " + c.why
		}
	}
	to, ours := strings.CutPrefix(imported, module+"/")
	if !ours {
		return ""
	}
	low, _ := ruleOf(to) // a package without a rule is reported for itself
	high, _ := ruleOf(from)
	switch {
	case low.layer >= testOnly && high.layer < testOnly:
		return "only tests may: " + low.why
	case low.layer >= high.layer && !(high.layer >= testOnly && low.layer < testOnly):
		return "imports point down: " + low.path + " is not below " + high.path
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
