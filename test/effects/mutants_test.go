// Package effects_test proves effects as a whole: rules, lives of objects, deaths of processes and
// lies of other sides, all made of a seed, and what came of it compared with a model that knows
// nothing of the product's code.
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

// edit replaces a text of a source file of internal, which must be in it once.
type edit struct{ file, old, new string }

// mutant is the product, broken on purpose.
type mutant struct {
	name  string
	edits []edit
}

const (
	panicsGo                          = "effects/runner/panics.go"
	runnerGo, nextGo, callGo, storeGo = "effects/runner/runner.go", "effects/runner/next.go", "effects/runner/call.go",
		"effects/runner/store.go"
	recoveryGo      = "effects/runner/recovery.go"
	planGo, applyGo = "effects/plan.go", "processor/apply.go"
)

// mutants are ways to break what effects promise. Each must be noticed.
var mutants = []mutant{
	{"enters a step after its call", []edit{
		{runnerGo, "if err := reserve(ctx, tx, calls); err != nil {", "if err := reserve(ctx, tx, nil); err != nil {"},
		{panicsGo, "	return *d.perform(ctx, c)\n", "	made := d.perform(ctx, c)\n	_ = postgres.InTx(ctx, " +
			"d.r.Pool, " +
			"\"late\", d.r.Settings.TxTimeout, func(ctx context.Context, tx pgx.Tx) error { return reserve(ctx, tx, " +
			"[]*call{c}) })\n	return *made\n"},
		{panicsGo, "	\"runtime/debug\"\n",
			"	\"runtime/debug\"\n\n	\"github.com/jackc/pgx/v5\"\n	\"github.com/postern-gateway/postern/internal/postgres\"\n"}}},
	{"sends a step again that is once", []edit{
		{nextGo, "	case c.recovery == effects.RecoverByOperator:\n", "	case false:\n"},
		{nextGo, "&& c.recovery == effects.RecoverByOperator:", "&& false:"}}},
	{"keeps no key apart", []edit{
		{planGo, "INSERT INTO effects (key, rule_version, rule,", "INSERT INTO effects (forced, key, rule_version, " +
			"rule,"},
		{planGo, "SELECT d.key, d.version, d.rule, d.source, d.account, d.type, d.id, d.event, $13,",
			"SELECT (random() * 1e9)::int, d.key, d.version, d.rule, d.source, d.account, d.type, d.id, d.event, $13,"}}},
	{"plans after the change is committed", []edit{
		{applyGo, "			if result.planned, err = tracked.plan(ctx, tx); err != nil {\n				return " +
			"err\n			}\n", "			late = tracked\n"},
		{applyGo, "	result.endedAt = time.Now()\n", "	if err == nil {\n		err = postgres.InTx(ctx, " +
			"p.Pool, " +
			"\"late\", p.Settings.ApplyTimeout, func(ctx context.Context, tx pgx.Tx) (err error) { result.planned, " +
			"err " +
			"= late.plan(ctx, tx); return err })\n	}\n	result.endedAt = time.Now()\n"},
		{applyGo, "	var batchID int64\n", "	var batchID int64\n	var late *transitions\n"}}},
	{"believes whoever answers a check", []edit{{callGo, "	if !a.isConclusive() {\n", "	if false {\n"},
		{callGo, "	case done && !a.is2xx():", "	case false:"}}},
	{"sends a step again that is once and that the other side does not know of",
		[]edit{{callGo, "	case c.neverRepeat:\n", "	case false:\n"}}},
	{"sends to another side what the first may have done",
		[]edit{{nextGo, "	case !all.sameTarget(b.destination, step.Destination):\n", "	case false:\n"}}},
	{"forgets that a step was once",
		[]edit{{recoveryGo, "return by, once || c.outcomeUnknown && b.neverRepeat\n", "return by, once\n"}}},
	{"lets a check of later speak for a key", []edit{{recoveryGo, "	case by == effects.RecoverByCheck && !once && " +
		"b.recovery != effects.RecoverByCheck:", "	case false:"}}},
	{"asks while the step may be done still", []edit{{recoveryGo, "; wait > 0 {", "; false {"},
		{nextGo, "max(atLeast, c.step.Check.Delay)", "max(atLeast, 0)"}}},
	{"takes what was under way at a crash for not done",
		[]edit{{storeGo, "UPDATE effect_steps s SET state = 'unknown', ended_at",
			"UPDATE effect_steps s SET state = 'failed', ended_at"}}},
	{"takes what was under way at a crash for done",
		[]edit{{storeGo, "UPDATE effect_steps s SET state = 'unknown', ended_at",
			"UPDATE effect_steps s SET state = 'done', ended_at"}}},
	{"takes no answer for not done",
		[]edit{{callGo, "return c.retry(effects.Unknown, 0, \"no response: \"",
			"return c.retry(effects.StepFailed, 0, \"no response: \""}}},
	{"takes 500 for not done", []edit{{callGo, "	state := effects.Unknown\n", "	state := effects.StepFailed\n"}}},
	{"lets a step that was not done this time end the doubt of the time before",
		[]edit{{nextGo, "	if state == effects.StepFailed && c.outcomeUnknown && !c.check {\n", "	if false {\n"}}},
	{"makes another key at each attempt", []edit{
		{nextGo, "rules.StepKey(c.key, c.version, c.forced, c.step.Name, c.undo)",
			"rules.StepKey(c.key, c.version, int(c.leaseEpoch), c.step.Name, c.undo)"},
		{nextGo, "	if b != nil && !c.check && string(b.request) != \"null\" {\n", "	if false {\n"}}},
	{"forgets the steps that are done", []edit{{nextGo, "if b := t.findStep(r.Steps[i].Name, false); b == nil || " +
		"b.state " +
		"!= effects.StepDone {\n				return &r.Steps[i], false, i", "if b := t.findStep(r.Steps[i].Name, " +
		"false); b == nil || b.state != effects.StepDone || t.leaseEpoch%3 == 0 {\n				return " +
		"&r.Steps[i], " +
		"false, i"}}},
	{"takes effects that another one has", []edit{{storeGo, "state IN ('planned', 'failed')\n  	AND due <= " +
		"(SELECT " +
		"clock_now()) ORDER BY due LIMIT $2 FOR UPDATE SKIP LOCKED", "state IN ('planned', 'failed', 'running') AND " +
		"coalesce(due, now()) <= (SELECT clock_now()) ORDER BY due LIMIT $2 FOR UPDATE SKIP LOCKED"}}},
	{"takes effects without a lock",
		[]edit{{storeGo, "ORDER BY due LIMIT $2 FOR UPDATE SKIP LOCKED\n", "ORDER BY due LIMIT $2\n"}}},
	{"lets an answer end another attempt", []edit{
		{storeGo, "JOIN effects e ON e.effect = d.effect AND e.state = 'running' AND e.claims = d.claims\n",
			"JOIN effects e ON e.effect = d.effect AND e.state = 'running' AND e.claims >= d.claims\n"},
		{storeGo, "WHERE e.effect = d.effect AND e.state = 'running' AND e.claims = d.claims\nRETURNING",
			"WHERE e.effect = d.effect AND e.state = 'running' AND e.claims >= d.claims\nRETURNING"}}},
	{"has effects of a replay that is to have none",
		[]edit{{"processor/transitions.go", "plansEffects: to.Run == events.LiveRun || to.Effects,",
			"plansEffects: to.Run >= events.LiveRun,"}}},
	{"has no effects of a replay",
		[]edit{{"processor/transitions.go", "plansEffects: to.Run == events.LiveRun || to.Effects,",
			"plansEffects: to.Run == events.LiveRun,"}}},
	{"acts on what is not certain",
		[]edit{{"processor/transitions.go", "	if f.ambiguous || !exists ||", "	if !exists ||"}}},
	{"asks nobody", []edit{{planGo, "	if rule.Approval == rules.ApproveRequired || rule.Approval == " +
		"rules.ApproveOnReplay && run != 0 {\n", "	if false {\n"}}},
	{"supersedes what was not superseded, and not what was",
		[]edit{{planGo, "e.rule = d.rule AND e.effect <> d.effect", "e.rule = d.rule AND e.effect = d.effect"}}},
	{"captures nothing", []edit{{callGo, "		captured[name] = removeNUL(v)\n",
		"		captured[name] = fmt.Sprint(removeNUL(v), \"?\")\n"}}},
}

// overlay writes the changed files into a folder, and what go must know of them.
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
			return "", fmt.Errorf("%s does not have this once, write the mutant anew: %s", e.file, e.old)
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

// The mutants are of the product as it is.
func TestMutantsCanBeMade(t *testing.T) {
	t.Parallel()
	for _, m := range mutants {
		if _, err := m.overlay(t.TempDir()); err != nil {
			t.Errorf("the product that %s: %v", m.name, err)
		}
	}
}

// everyMutant runs the other tests on the product broken in one way after the other, and is 1
// unless each is noticed.
func everyMutant(ctx context.Context, only string) (status int) {
	for _, m := range mutants {
		if !strings.Contains(m.name, only) {
			continue
		}
		said, err := m.noticed(ctx)
		if err != nil {
			said, status = err.Error(), 1
		}
		fmt.Printf("the product that %s: %s\n", m.name, said)
	}
	return status
}

// noticed is the first that a test said of the product so broken.
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
		"TestWorlds|TestEveryPointOfDeath|TestOneRunnerWins|TestWhoComesLateLoses|TestALateActIsNotRepeated|TestEditedRules", "-effects.patience", "45s", "-test.timeout", "4m").CombinedOutput()
	if err == nil {
		return "", fmt.Errorf("NOBODY NOTICED")
	}
	for line := range strings.Lines(string(out)) {
		if _, says, ok := strings.Cut(line, "_test.go:"); ok && !strings.Contains(line, "effects wanted") &&
			!strings.Contains(line, "processes died") {
			return "noticed, " + strings.TrimSpace(says[:min(len(says), 200)]), nil
		}
	}
	return "", fmt.Errorf("ended for another reason: %w\n%s", err, out)
}

// A failing world is made again with its seed: go test ./test/effects -run TestWorlds
// -effects.seed=N -effects.count=1.
var (
	count = flag.Int("effects.count", 4, "how many worlds there are")
	seed  = flag.Uint64("effects.seed", 1, "the seed of the first world")
	// patience is how long a test waits for what must come.
	patience = flag.Duration("effects.patience", 2*time.Minute, "how long to wait for what must come")
	broken   = flag.String("effects.mutants", "", "instead, break the product in each way that has this text in its "+
		"name, and fail unless each is noticed; all: in every way")
)

// atOnce is how many worlds there are at the same time: they wait most of theirs.
const atOnce = "8"

func TestMain(m *testing.M) {
	flag.Parse()
	if *broken != "" {
		os.Exit(everyMutant(context.Background(), strings.TrimPrefix(*broken, "all")))
	}
	if err := flag.Set("test.parallel", atOnce); err != nil {
		panic(err) // the flag is the testing package's
	}
	testkit.Main(m)
}

// must ends the test where there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
