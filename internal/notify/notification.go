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

	"github.com/postern-gateway/postern/internal/effects/jobs/runner"
)

// topic is a subject of notifications.
type topic struct {
	name, sql string
	// isCondition reports that it lasts until an operator acts; otherwise it is a single event.
	// isDelayed reports that it is reported only after it has lasted for a while.
	isCondition, isDelayed bool
	// singular and plural describe it, ended says that it is over.
	singular, plural, ended string
	// command shows the details; %d stands for the first id, if the items have ids.
	command string
}

// topics are all subjects of notifications.
var topics = []topic{
	{name: "failed_runs", sql: runsSQL, singular: "a run has failed, or an error has paused its swap",
		plural:  "%s runs have failed, or errors have paused their swaps",
		command: "postern runs list, and postern runs show %d"},
	{name: "dead_outcomes", sql: deadSQL, isCondition: true,
		singular: "an event is dead: it was not applied, and will not be retried " +
			"automatically", plural: "%s events are dead: they were not applied, and will not be retried automatically",
		ended: "no event is dead any more", command: "postern outcomes list --status dead, and postern events show %d"},
	{name: "effects_with_unknown_outcome", sql: unknownSQL, isCondition: true, isDelayed: true,
		singular: "an effect has an unknown outcome: a step of it may or may not have been executed",
		plural:   "%s effects have an unknown outcome: a step of them may or may not have been executed",
		ended:    "no effect has an unknown outcome any more",
		command:  "postern effects show %d, which lists the allowed actions"},
	{name: "effects_needing_review", sql: reviewSQL, isCondition: true, isDelayed: true,
		singular: "an effect needs review",
		plural:   "%s effects need review",
		ended:    "no effect needs review any more", command: "postern effects list --state needs_review, or --state " +
			"planned if a rule or destination is not configured, and postern effects show %d"},
	{name: "effects_awaiting_approval", sql: approvalSQL, isCondition: true, isDelayed: true,
		singular: "an effect awaits approval",
		plural:   "%s effects await approval",
		ended:    "no effect awaits approval any more", command: "postern effects list --state awaiting_approval, " +
			"and postern effects show %d"},
	{name: "stalled_feeds", sql: feedsSQL, isCondition: true,
		singular: "a reader of changes stands still: its feed cursor has unread changes for longer than it may",
		plural:   "%s readers of changes stand still: their feed cursors have unread changes for longer than they may",
		ended:    "no reader of changes stands still any more", command: "postern feed list"},
}

func topicOf(name string) topic {
	return topics[slices.IndexFunc(topics, func(k topic) bool { return k.name == name })]
}

// phase says why a notification is sent.
type phase string

const (
	phaseNone     phase = ""
	phaseHappened phase = "happened"
	phaseBegan    phase = "began"
	phaseLasts    phase = "lasts"
	phaseOver     phase = "over"
	phaseTest     phase = "test"
)

// notification is the state of one topic for one recipient.
type notification struct {
	topic
	id string
	// seed is a random value of the row, unique across installations.
	seed     [16]byte
	sequence int64
	// since is when the current condition was first reported; at is the current time of the
	// database.
	since, at time.Time
	active    bool
	// mayRepeat reports that enough time has passed since the last notification about the topic.
	mayRepeat               bool
	watermark, newWatermark time.Time
	count                   int64
	// atLeast reports that there may be more than count.
	atLeast bool
	ids     []int64
	phase   phase
}

// noticeID returns an id that stays the same for each try of a notification. The next notification
// has another id. A repeated notice about events also gets another id if it covers further events,
// because these would not be reported again.
func noticeID(t *notification) string {
	content := fmt.Appendf(t.seed[:], ":%s:%d", t.phase, t.sequence)
	if t.phase == phaseHappened {
		content = fmt.Appendf(content, ":%d", t.newWatermark.UnixMicro())
	}
	sum := sha256.Sum256(content)
	return "postern-notify-" + base64.RawURLEncoding.EncodeToString(sum[:18])
}

// alert is the posted form of a notice, a contract with receivers.
type alert struct {
	// Type is postern.alert.
	Type      string    `json:"type"`
	Timestamp string    `json:"timestamp"`
	Data      alertData `json:"data"`
}

type alertData struct {
	// Notify is the name of the recipient in the configuration, Condition one of its conditions.
	Notify    string `json:"notify"`
	Condition string `json:"condition"`
	// State is happened, began, lasts, over or test.
	State string `json:"state"`
	// Count is the number of items, AtLeast reports that there may be more, IDs are the first.
	Count   int64   `json:"count"`
	AtLeast bool    `json:"at_least"`
	IDs     []int64 `json:"ids"`
	// Since is when the condition was first reported; "" for single events.
	Since string `json:"since"`
	// Summary describes it in one line, Command is what to run next.
	Summary string `json:"summary"`
	Command string `json:"command"`
}

// notice returns the notice to send.
func (t *notification) notice(r *Recipient) runner.Notice {
	d := alertData{Notify: r.Name, Condition: t.name, State: string(t.phase), Count: t.count, AtLeast: t.atLeast,
		IDs: append([]int64{}, t.ids...), Summary: t.summary(), Command: t.nextCommand()}
	if t.active {
		d.Since = t.since.UTC().Format(time.RFC3339)
	}
	body, err := json.Marshal(alert{Type: "postern.alert", Timestamp: t.at.UTC().Format(time.RFC3339Nano), Data: d})
	if err != nil {
		panic(fmt.Sprintf("notify: write an alert: %v", err)) // it consists of texts and numbers only
	}
	return runner.Notice{ID: t.id, At: t.at, Path: r.Path, JSON: body, To: r.Recipients(), Subject: "Postern: " +
		d.Summary, Text: t.mailText(r, &d)}
}

// summary describes the notification in one line.
func (t *notification) summary() string {
	switch t.phase {
	case phaseTest:
		return "this is a test, and nothing has happened"
	case phaseOver:
		return "over: " + t.ended
	case phaseLasts:
		return "still: " + t.describeCount()
	case phaseNone, phaseHappened, phaseBegan:
	}
	return t.describeCount()
}

func (t *notification) describeCount() string {
	switch {
	case t.atLeast:
		return fmt.Sprintf(t.plural, strconv.FormatInt(t.count, 10)+" or more")
	case t.count == 1:
		return t.singular
	}
	return fmt.Sprintf(t.plural, strconv.FormatInt(t.count, 10))
}

// nextCommand returns the command to run.
func (t *notification) nextCommand() string {
	switch {
	case !strings.Contains(t.command, "%d") && t.count > 0:
		return t.command
	case len(t.ids) == 0:
		return ""
	}
	return fmt.Sprintf(t.command, t.ids[0])
}

func (t *notification) mailText(r *Recipient, d *alertData) string {
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
		fmt.Fprintf(&b, "\nFirst reported at %s.", d.Since)
	}
	fmt.Fprintf(&b, "\nSent by notify.%s of the configuration, at most once in %s", r.Name, r.Interval)
	if t.isCondition && t.phase != phaseOver {
		b.WriteString(" while it lasts, and when it ends")
	}
	b.WriteString(".\n")
	return b.String()
}
