// Package effects_test tests effects end to end. Rules, histories of objects, crashes of processes
// and faults of destinations are random, determined by a seed. The result is compared with a model
// that shares no code with the product.
package effects_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/testkit"
)

// edit replaces a text that a source file of internal must contain exactly once.
type edit struct{ file, old, new string }

// mutant is the product with a deliberate fault.
type mutant struct {
	name  string
	edits []edit
}

const (
	panicsGo        = "effects/jobs/runner/panics.go"
	runnerGo        = "effects/jobs/runner/runner.go"
	nextGo          = "effects/jobs/runner/next.go"
	callGo          = "effects/jobs/runner/call.go"
	storeGo         = "effects/jobs/runner/store.go"
	recoveryGo      = "effects/jobs/runner/recovery.go"
	conditionGo     = "effects/jobs/runner/condition.go"
	planGo, applyGo = "effects/plan.go", "apply/transaction.go"
)

// mutants break the guarantees of effects. The tests must notice each.
var mutants = []mutant{
	{"records a step after its call", []edit{
		{runnerGo, "if err := reserve(ctx, tx, calls, skipped); err != nil {",
			"if err := reserve(ctx, tx, nil, skipped); err != nil {"},
		{panicsGo, "	return *d.perform(ctx, c)\n", "	made := d.perform(ctx, c)\n	_ = postgres.InTx(ctx, " +
			"d.r.Pool, \"late\", d.r.Settings.TxTimeout, func(ctx context.Context, tx pgx.Tx) error { return " +
			"reserve(ctx, tx, []*call{c}, nil) })\n	return *made\n"},
		{panicsGo, "	\"runtime/debug\"\n",
			"	\"runtime/debug\"\n\n	\"github.com/jackc/pgx/v5\"\n" +
				"	\"github.com/postern-gateway/postern/internal/postgres\"\n"}}},
	{"repeats a step that must not be repeated", []edit{
		{nextGo, "	case c.recovery == effects.RecoverByOperator:\n", "	case false:\n"},
		{nextGo, "&& c.recovery == effects.RecoverByOperator:", "&& false:"}}},
	{"plans an effect with a used key again", []edit{
		{planGo, "INSERT INTO effects (key, rule_version, rule,", "INSERT INTO effects (forced, key, rule_version, " +
			"rule,"},
		{planGo, "SELECT d.key, d.version, d.rule, d.source, d.account, d.type, d.id, d.event, $13,",
			"SELECT (random() * 1e9)::int, d.key, d.version, d.rule, d.source, d.account, d.type, d.id, " +
				"d.event, $13,"}}},
	{"plans effects after the change is committed", []edit{
		{applyGo, "	t.planned, err = t.observed.plan(ctx, t.tx)\n	return err\n", "	return nil\n"},
		{applyGo, "	t.endedAt = time.Now()\n", "	if err == nil {\n		err = postgres.InTx(ctx, " +
			"a.Pool, \"late\", a.Settings.ApplyTimeout, func(ctx context.Context, tx pgx.Tx) (err error) { " +
			"t.planned, err = t.observed.plan(ctx, tx); return err })\n	}\n	t.endedAt = time.Now()\n"}}},
	{"accepts any response to a check", []edit{{callGo, "	if !a.isConclusive() {\n", "	if false {\n"},
		{callGo, "	case done && !a.is2xx():", "	case false:"}}},
	{"repeats an at-most-once step that the destination does not know",
		[]edit{{callGo, "	case c.neverRepeat:\n", "	case false:\n"}}},
	{"sends a step with unknown outcome to another destination",
		[]edit{{nextGo, "	case !all.sameTarget(b.destination, step.Destination):\n", "	case false:\n"}}},
	{"forgets that a step was at-most-once before its rule was edited",
		[]edit{{recoveryGo, "return by, neverRepeat || c.outcomeUnknown && b.neverRepeat\n",
			"return by, neverRepeat\n"}}},
	{"uses the check of an edited rule for a step that was sent with a key", []edit{{recoveryGo, "	case by == " +
		"effects.RecoverByCheck && !neverRepeat && b.recovery != effects.RecoverByCheck:", "	case false:"}}},
	{"checks while the destination may still execute the step", []edit{{recoveryGo, "; wait > 0 {", "; false {"},
		{nextGo, "max(atLeast, c.step.Check.Delay)", "max(atLeast, 0)"}}},
	{"records a step that was open at a crash as failed",
		[]edit{{storeGo, "UPDATE effect_steps s SET state = 'unknown', ended_at",
			"UPDATE effect_steps s SET state = 'failed', ended_at"}}},
	{"records a step that was open at a crash as done",
		[]edit{{storeGo, "UPDATE effect_steps s SET state = 'unknown', ended_at",
			"UPDATE effect_steps s SET state = 'done', ended_at"}}},
	{"records a step without a response as failed",
		[]edit{{callGo, "return c.retry(effects.Unknown, 0, \"no response: \"",
			"return c.retry(effects.StepFailed, 0, \"no response: \""}}},
	{"records a step with response 500 as failed", []edit{{callGo, "	state := effects.Unknown\n", "	state := " +
		"effects.StepFailed\n"}}},
	{"lets a failed attempt end the unknown outcome of an earlier one",
		[]edit{{nextGo, "	if state == effects.StepFailed && c.outcomeUnknown && !c.check {\n", "	if false {\n"}}},
	{"uses another key for each attempt", []edit{
		{conditionGo, "rules.StepKey(t.key, t.version, t.forced, step.Name, undo)",
			"rules.StepKey(t.key, t.version, int(t.leaseEpoch), step.Name, undo)"},
		{nextGo, "	if b != nil && !c.check && string(b.request) != \"null\" {\n", "	if false {\n"}}},
	{"repeats steps that are done", []edit{{nextGo, "if b := t.findStep(r.Steps[i].Name, false); b == nil || " +
		"!b.state.Ended() {\n				return &r.Steps[i], false, " +
		"i", "if b := t.findStep(r.Steps[i].Name, false); b == nil || !b.state.Ended() || t.leaseEpoch%3 " +
		"== 0 {\n				return &r.Steps[i], false, i"}}},
	{"leases effects that another process has leased", []edit{{storeGo, "state IN ('planned', 'failed')\n  	AND " +
		"due <= (SELECT clock_now()) AND (NOT", "state IN ('planned', 'failed', 'running') AND coalesce(due, now()) " +
		"<= (SELECT clock_now()) AND (NOT"}}},
	{"leases effects without a lock",
		[]edit{{storeGo, "ORDER BY due LIMIT $2 FOR UPDATE SKIP LOCKED\n", "ORDER BY due LIMIT $2\n"}}},
	{"lets a response end another attempt", []edit{
		{storeGo, "JOIN effects e ON e.effect = d.effect AND e.state = 'running' AND e.lease_epoch = d.lease_epoch\n",
			"JOIN effects e ON e.effect = d.effect AND e.state = 'running' AND e.lease_epoch >= d.lease_epoch\n"},
		{storeGo, "WHERE e.effect = d.effect AND e.state = 'running' AND e.lease_epoch = d.lease_epoch\nRETURNING",
			"WHERE e.effect = d.effect AND e.state = 'running' AND e.lease_epoch >= d.lease_epoch\nRETURNING"}}},
	{"plans effects of a replay that must have none",
		[]edit{{"apply/target.go", "return to.Run == events.LiveRun || to.Effects",
			"return to.Run >= events.LiveRun"}}},
	{"plans no effects of a replay",
		[]edit{{"apply/target.go", "return to.Run == events.LiveRun || to.Effects",
			"return to.Run == events.LiveRun"}}},
	{"plans effects of an ambiguous state",
		[]edit{{"apply/transitions.go", "	if f.ambiguous || !exists ||", "	if !exists ||"}}},
	{"requires no approval", []edit{{planGo, "	if rule.Approval == rules.ApproveRequired || rule.Approval == " +
		"rules.ApproveOnReplay && run != 0 {\n", "	if false {\n"}}},
	{"supersedes the new effect instead of the old one",
		[]edit{{planGo, "e.rule = d.rule AND e.effect <> d.effect", "e.rule = d.rule AND e.effect = d.effect"}}},
	{"decides a condition again after a restart", []edit{
		{conditionGo, "step.When == nil || t.findStep(step.Name, false) != nil {",
			"step.When == nil || t.isSkipped(step.Name) {"},
		{conditionGo, "		t.steps = append(t.steps, stepRow{step: step.Name, state: effects.Skipped})\n",
			"		t.setSkipped(step.Name)\n"},
		{conditionGo, "// decideLater makes", "func (t *leasedEffect) isSkipped(step string) bool {\n	b := " +
			"t.findStep(step, false)\n	return b != nil && b.state == effects.Skipped\n}\n\nfunc (t *leasedEffect) " +
			"setSkipped(step string) {\n	if b := t.findStep(step, false); b != nil {\n		b.state = " +
			"effects.Skipped\n		return\n	}\n	t.steps = append(t.steps, stepRow{step: step, state: " +
			"effects.Skipped})\n}\n\n// decideLater makes"}}},
	{"does not store that a step was skipped", []edit{{runnerGo, "reserve(ctx, tx, calls, skipped); err",
		"reserve(ctx, tx, calls, nil); err"}}},
	{"sends a step that the destination had before", []edit{{nextGo, "	c.first = !undo && ",
		"	c.first = false && "}}},
	{"sends a step before the destination has responded whether it has it",
		[]edit{{callGo, "	if !a.isConclusive() {\n		return c.retry(c.stateBeforeCheck(),",
			"	if !a.isConclusive() {\n		if c.first {\n			return c.notExecutedBefore(a.status)\n" +
				"		}\n		return c.retry(c.stateBeforeCheck(),"}}},
	{"captures a wrong value", []edit{{callGo, "		captured[name] = removeNUL(v)\n",
		"		captured[name] = fmt.Sprint(removeNUL(v), \"?\")\n"}}},
}

// overlay writes the changed files into a folder, and the overlay file that makes go build use
// them.
func (m mutant) overlay(dir string) (file string, err error) {
	replace := map[string]string{}
	for i, e := range m.edits {
		path, err := filepath.Abs(filepath.Join("..", "..", "internal", e.file))
		if err != nil {
			return "", err
		}
		from := path
		if replace[path] != "" { // edited before
			from = replace[path]
		}
		text, err := os.ReadFile(from)
		if err != nil {
			return "", err
		}
		if strings.Count(string(text), e.old) != 1 {
			return "", fmt.Errorf("%s does not contain this text exactly once: write the mutant again: %s", e.file,
				e.old)
		}
		replace[path] = filepath.Join(dir, fmt.Sprintf("edit%d.go", i))
		if err := os.WriteFile(replace[path], []byte(strings.Replace(string(text), e.old, e.new, 1)),
			0o600); err != nil {
			return "", err
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	file = filepath.Join(dir, "overlay.json")
	return file, os.WriteFile(file, text, 0o600)
}

// Each mutant must match the product.
func TestMutants_each_appliesToProduct(t *testing.T) {
	t.Parallel()
	for _, m := range mutants {
		if _, err := m.overlay(t.TempDir()); err != nil {
			t.Errorf("the mutant that %s: %v", m.name, err)
		}
	}
}

// everyMutant runs the other tests with one mutant after the other. It returns 1 unless the tests
// notice each.
func everyMutant(ctx context.Context, only string) (status int) {
	for _, m := range mutants {
		if !strings.Contains(m.name, only) {
			continue
		}
		said, err := m.noticed(ctx)
		if err != nil {
			said, status = err.Error(), 1
		}
		fmt.Printf("the mutant that %s: %s\n", m.name, said)
	}
	return status
}

// noticed returns the first message of a failed test.
func (m mutant) noticed(ctx context.Context) (string, error) {
	dir, err := os.MkdirTemp("", "postern-mutant-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	overlay, err := m.overlay(dir)
	if err != nil {
		return "", err
	}
	binary := filepath.Join(dir, "effects.test")
	if out, err := exec.CommandContext(ctx, "go", "test", "-c", "-o", binary, "-overlay", overlay,
		".").CombinedOutput(); err != nil {
		return "", fmt.Errorf("does not build: %w\n%s", err, out)
	}
	out, err := exec.CommandContext(ctx, binary, "-test.run",
		"TestEffects_|TestRunner_", "-effects.patience", "45s", "-test.timeout", "4m").CombinedOutput()
	if err == nil {
		return "", fmt.Errorf("NO TEST NOTICED IT")
	}
	for line := range strings.Lines(string(out)) {
		if _, says, ok := strings.Cut(line, "_test.go:"); ok && !strings.Contains(line, "effects wanted") &&
			!strings.Contains(line, "processes died") {
			return "noticed, " + strings.TrimSpace(says[:min(len(says), 200)]), nil
		}
	}
	return "", fmt.Errorf("the tests failed without a failed test: %w\n%s", err, out)
}

// A failed world is repeated with its seed: go test ./test/effects -run TestEffects_randomWorlds
// -effects.seed=N -effects.count=1.
var (
	count = flag.Int("effects.count", 4, "the number of worlds")
	seed  = flag.Uint64("effects.seed", 1, "the seed of the first world")
	// patience is how long a test waits for an expected condition.
	patience = flag.Duration("effects.patience", 2*time.Minute, "how long to wait for an expected condition")
	broken   = flag.String("effects.mutants", "", "instead of the tests, run the mutants whose name contains this "+
		"text (all: all mutants), and fail unless the tests notice each")
)

// atOnce is the number of parallel worlds. They spend most of their time waiting.
const atOnce = "8"

func TestMain(m *testing.M) {
	flag.Parse()
	if *broken != "" {
		os.Exit(everyMutant(context.Background(), strings.TrimPrefix(*broken, "all")))
	}
	if err := flag.Set("test.parallel", atOnce); err != nil {
		panic(err) // the testing package defines this flag
	}
	testkit.Main(m)
}

// must ends the test if there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
