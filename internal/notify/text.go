package notify

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/effects/runner"
)

// kind is something that is told.
type kind struct {
	about, sql string
	// lasts: there are some until a person has seen to them; else they happened. aged: it is told once it has lasted for a while.
	lasts, aged bool
	// one and many say what there is, none that it is over.
	one, many, none string
	// command shows them; %d stands for the first.
	command string
}

// kinds are all that is told.
var kinds = []kind{
	{about: "failed_runs", sql: runsSQL, one: "a run has failed", many: "%s runs have failed", command: "postern runs list --status failed, and postern runs show %d"},
	{about: "dead_outcomes", sql: deadSQL, lasts: true, one: "an event is dead: it was not applied, and will not be by itself", many: "%s events are dead: they were not applied, and will not be by themselves",
		none: "no event is dead any more", command: "postern outcomes list --status dead, and postern events show %d"},
	{about: "unknown_effects", sql: unknownSQL, lasts: true, aged: true, one: "an effect is in doubt: nobody knows whether a step of it was done", many: "%s effects are in doubt: nobody knows whether a step of them was done",
		none: "no effect is in doubt any more", command: "postern effects show %d, which says what is safe to do"},
	{about: "review_effects", sql: reviewSQL, lasts: true, aged: true, one: "an effect needs a person", many: "%s effects need a person",
		none: "no effect needs a person any more", command: "postern effects list --state review, or --state planned where a rule or destination is not configured, and postern effects show %d"},
	{about: "waiting_effects", sql: waitingSQL, lasts: true, aged: true, one: "an effect waits for an approval", many: "%s effects wait for an approval",
		none: "no effect waits for an approval any more", command: "postern effects list --state waiting, and postern effects show %d"},
}

func kindOf(about string) kind {
	return kinds[slices.IndexFunc(kinds, func(k kind) bool { return k.about == about })]
}

// phase is what there is to tell.
type phase string

const (
	phaseNone     phase = ""
	phaseHappened phase = "happened"
	phaseBegan    phase = "began"
	phaseLasts    phase = "lasts"
	phaseOver     phase = "over"
	phaseTest     phase = "test"
)

// tell is what somebody is told.
type tell struct {
	kind
	id string
	// seed is that of the row, which no other has in any installation.
	seed [16]byte
	turn int64
	// since is when it was first told, if it has lasted since; at is now, by the database's clock.
	since, at time.Time
	lasted    bool
	// again: enough time has passed since something of the kind was told.
	again         bool
	mark, newMark time.Time
	count         int64
	// more: there may be more than that.
	more  bool
	ids   []int64
	phase phase
}

// noticeID is the same for each attempt to tell something, and another for what is told next: also where an attempt says more than one before it, of what would not be told again.
func noticeID(t *tell) string {
	content := fmt.Appendf(t.seed[:], ":%s:%d", t.phase, t.turn)
	if t.phase == phaseHappened {
		content = fmt.Appendf(content, ":%d", t.newMark.UnixMicro())
	}
	sum := sha256.Sum256(content)
	return "postern-notify-" + base64.RawURLEncoding.EncodeToString(sum[:18])
}

// alert is a notice as it is posted: a contract others program against.
type alert struct {
	// Type is postern.alert.
	Type      string    `json:"type"`
	Timestamp string    `json:"timestamp"`
	Data      alertData `json:"data"`
}

type alertData struct {
	// Notify is the name in the configuration, About what it is about.
	Notify string `json:"notify"`
	About  string `json:"about"`
	// State is happened, began, lasts, over or test.
	State string `json:"state"`
	// Count is how many there are, AtLeast that there may be more; IDs are the first.
	Count   int64   `json:"count"`
	AtLeast bool    `json:"at_least"`
	IDs     []int64 `json:"ids"`
	// Since is when what lasts was first told; "" for what does not.
	Since string `json:"since"`
	// Summary says it in a line, Command what to run next.
	Summary string `json:"summary"`
	Command string `json:"command"`
}

// notice is what is sent.
func (t *tell) notice(r *Recipient) runner.Notice {
	d := alertData{Notify: r.Name, About: t.about, State: string(t.phase), Count: t.count, AtLeast: t.more, IDs: append([]int64{}, t.ids...), Summary: t.summary(), Command: t.next()}
	if t.lasted {
		d.Since = t.since.UTC().Format(time.RFC3339)
	}
	body, err := json.Marshal(alert{Type: "postern.alert", Timestamp: t.at.UTC().Format(time.RFC3339Nano), Data: d})
	if err != nil {
		panic(fmt.Sprintf("notify: write an alert: %v", err)) // it is of texts and numbers alone
	}
	return runner.Notice{ID: t.id, At: t.at, Path: r.Path, JSON: body, To: r.Recipients(), Subject: "Postern: " + d.Summary, Text: t.text(r, &d)}
}

// summary says what there is in a line.
func (t *tell) summary() string {
	switch t.phase {
	case phaseTest:
		return "this is a test, and nothing has happened"
	case phaseOver:
		return "over: " + t.none
	case phaseLasts:
		return "still: " + t.counted()
	case phaseNone, phaseHappened, phaseBegan:
	}
	return t.counted()
}

func (t *tell) counted() string {
	switch {
	case t.more:
		return fmt.Sprintf(t.many, strconv.FormatInt(t.count, 10)+" or more")
	case t.count == 1:
		return t.one
	}
	return fmt.Sprintf(t.many, strconv.FormatInt(t.count, 10))
}

// next is what to run.
func (t *tell) next() string {
	if len(t.ids) == 0 {
		return ""
	}
	return fmt.Sprintf(t.command, t.ids[0])
}

func (t *tell) text(r *Recipient, d *alertData) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s.\n", d.Summary)
	if len(t.ids) > 0 {
		var ids []string
		for _, id := range t.ids {
			ids = append(ids, strconv.FormatInt(id, 10))
		}
		more := ""
		if t.count > int64(len(ids)) {
			more = ", and more"
		}
		fmt.Fprintf(&b, "\n%s%s\n\n%s\n", strings.Join(ids, ", "), more, d.Command)
	}
	if d.Since != "" {
		fmt.Fprintf(&b, "\nTold first at %s.", d.Since)
	}
	fmt.Fprintf(&b, "\nTold by notify.%s of the configuration, at most once in %s", r.Name, r.Every)
	if t.lasts && t.phase != phaseOver {
		b.WriteString(" while it lasts, and when it is over")
	}
	b.WriteString(".\n")
	return b.String()
}
