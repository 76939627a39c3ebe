package console

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/operations"
)

var effectList = list[operations.EffectParams, effects.Effect]{
	title: "Effects", text: "Requests and mails that a rule sends once for a change of an object, the newest first.",
	command: "effects list", api: "/api/v1/effects",
	main: []string{"state", "rule", "source", "object_type", "object_id", "key", "since"},
	presets: []preset{{"all", ""}, {"awaiting approval", "?state=awaiting_approval"},
		{"needs review", "?state=needs_review"}, {"unknown outcome", "?unknown_outcome=true"},
		{"failed", "?state=failed"}, {"planned", "?state=planned"},
		{"done", "?state=done"}, {"rejected", "?state=rejected"}, {"expired", "?state=expired"}},
	columns: []string{"Select", "Effect", "State", "Rule", "Object", "Attempts", "Due", "Planned", "Reason"},
	row:     effectRow,
	read:    operations.Effects,
	extra:   ruleLinks,
	actions: selectionActions,
	empty: "No effect matches the filter. An effect appears here when a change of an object fits a rule in the " +
		"section effects of the configuration; the page docs/how-to/react-once-with-effects.md has an example.",
}

func effectPath(n int64) string { return path("effects", id(n)) }

func effectRow(r *request, e *effects.Effect) []cell {
	state := badge(string(e.State))
	if e.Compensating {
		state.Sub = "compensating"
	}
	rule := link(e.Rule, rulePath(e.Rule))
	rule.Sub = fmt.Sprintf("v%d", e.RuleVersion)
	if e.Forced != 0 {
		rule.Sub += fmt.Sprintf(", repeated by run %d", e.Forced)
	}
	due := r.shortTime(e.Due.Time)
	if e.State == effects.AwaitingApproval && !e.ExpiresAt.IsZero() {
		due = r.shortTime(e.ExpiresAt.Time)
		due.Sub = "approval ends"
	}
	effect := codeLink(id(e.ID), effectPath(e.ID))
	effect.Title = visible(e.Key)
	object := r.objectCell(e.Source, e.Account, e.ObjectType, e.ObjectID)
	return []cell{selectCell(r, e), effect, state, rule, object, number(e.Attempts), due,
		r.shortTime(e.PlannedAt.Time), shorten(e.Reason, 60)}
}

// selectCell is the checkbox of an effect that a change of several effects accepts.
func selectCell(r *request, e *effects.Effect) cell {
	switch e.State {
	case effects.AwaitingApproval, effects.Planned, effects.Failed, effects.Review:
		if r.mayChange(approveEffectsPath) == "" {
			return cell{Select: id(e.ID), Title: "effect " + id(e.ID)}
		}
	case effects.Running, effects.Done, effects.Rejected, effects.Expired, effects.Superseded:
	}
	return cell{}
}

const approveEffectsPath = "/api/v1/effects/approve"

// selectionActions change the selected effects, all or none.
func selectionActions(r *request, _ *operations.EffectParams) []action {
	return []action{r.form(action{Label: "Change the selected effects", Reason: "required",
		Text: fmt.Sprintf("All selected effects are changed, or none: at most %d. Approve: processors send their "+
			"requests and mails. Reject: they end permanently, and steps that are done stay done. Retry: processors "+
			"try the next step of each again now.", operations.MaxChangedEffects),
		Paths: []value{{"approve", approveEffectsPath}, {"reject", "/api/v1/effects/reject"},
			{"retry", "/api/v1/effects/retry"}}})}
}

// effectPage shows one effect: what may be done, its steps, and what its templates get.
func effectPage(ctx context.Context, r *request) (*view, error) {
	n, err := r.pathNumber("effect")
	if err != nil {
		return nil, err
	}
	e, err := operations.Effect(ctx, r.c.Pages, n)
	if err != nil {
		return nil, err
	}
	data, err := effects.ShowData(ctx, r.c.Pages, n)
	if err != nil {
		return nil, err
	}
	v := &view{Kind: "Effect " + id(e.Effect.ID), Title: visible(e.Rule), Lead: []cell{badge(string(e.State))},
		Text: sentenceCase(visible(e.AllowedActions)) + "."}
	if e.Reason != "" {
		v.Notes = []note{{Tone: reasonTone(e.State), Text: "The reason: " + visible(e.Reason)}}
	}
	if e.State == effects.Planned || e.State == effects.Running {
		v.Refresh = openRunRefresh
	}
	v.Blocks = append(v.Blocks, block{Actions: effectActions(r, e)},
		block{Timeline: r.newTimeline("Times of this effect", effectMoments(e))})
	requests, err := requestBlocks(ctx, r, e)
	if err != nil {
		return nil, err
	}
	v.Blocks = append(append(v.Blocks, requests...), stepBlock(r, e))
	for i := range e.Steps {
		if s := &e.Steps[i]; len(s.Captured) > 2 {
			v.Blocks = append(v.Blocks, block{Heading: "Captured from the response of step " + stepName(s),
				Document: newDocument(s.Captured, "")})
		}
	}
	v.Blocks = append(v.Blocks, originBlock(r, e))
	b := block{ID: "data", Heading: "Template data", Text: "What the condition and the templates of the rule get."}
	if len(data.Data) > 0 {
		b.Document = newDocument(data.Data, "")
	} else {
		b.Text = "The template data was redacted, or cleared by retention. No request can be rendered any more."
	}
	v.Blocks = append(v.Blocks, b)
	return v, r.separateApprovals(ctx, v, operations.EffectCauses(*e))
}

func reasonTone(s effects.State) string {
	if tone := toneOf[string(s)]; tone == "bad" || tone == "warning" {
		return tone
	}
	return "info"
}

func stepName(s *effects.Step) string {
	if s.Undo {
		return "compensation of " + visible(s.Step)
	}
	return visible(s.Step)
}

// effectMoments are the times of an effect, in order.
func effectMoments(e *effects.View) []moment {
	all := []moment{{at: e.PlannedAt.Time, label: "planned", tone: "info"}}
	for i := range e.Steps {
		s := &e.Steps[i]
		if s.State != effects.Skipped {
			all = append(all, moment{at: s.ReservedAt.Time, label: stepName(s) + " began", tone: "info",
				href: "#steps"})
		}
		all = append(all, moment{at: s.EndedAt.Time, label: stepName(s) + " " + string(s.State),
			tone: toneOf[string(s.State)], href: "#steps"})
	}
	all = append(all, moment{at: e.Due.Time, label: "next attempt"})
	if e.State == effects.AwaitingApproval {
		all = append(all, moment{at: e.ExpiresAt.Time, label: "end of the time for an approval", tone: "warning"})
	}
	return sortMoments(all)
}

func stepBlock(r *request, e *effects.View) block {
	t := &table{Columns: []string{"Step", "State", "Note", "Undo", "Request", "Destination", "Attempts", "Response",
		"Began", "Ended", "Lost response"}, Empty: "No step has started."}
	for i := range e.Steps {
		s := &e.Steps[i]
		state := badge(string(s.State))
		request := shorten(s.Request, 80)
		request.Code, request.Title = true, s.Fingerprint
		status := cell{}
		if s.Status != 0 {
			status = text(fmt.Sprint(s.Status))
		}
		recovery, undo := text(recoveryText[s.Recovery]), cell{}
		switch {
		case s.State == effects.Skipped:
			recovery = cell{}
		case slices.Contains(e.NotUndoable, s.Step):
			undo = cell{Text: "cannot be undone", Tone: "warning", Badge: true}
		case s.Undoable && !s.Undo:
			undo = text("by its compensation")
		}
		explanation := shorten(cmp.Or(s.Error, s.Reason), 300)
		explanation.Wide = explanation.Text != ""
		t.Rows = append(t.Rows, []cell{text(stepName(s)), state, explanation, undo, request, text(s.Destination),
			number(s.Attempts), status, r.shortTime(s.ReservedAt.Time), r.shortTime(s.EndedAt.Time), recovery})
	}
	return block{ID: "steps", Heading: "Steps", Table: t}
}

// requestBlocks show the requests that the effect sends next.
func requestBlocks(ctx context.Context, r *request, e *effects.View) ([]block, error) {
	found, err := readAPI[operations.EffectRequests](ctx, r, http.MethodGet, "/api/v1/effects/"+id(e.Effect.ID)+
		"/requests", nil)
	if err != nil {
		return nil, err
	}
	if found.Omitted != "" {
		return []block{{ID: "requests", Heading: "Requests", Text: sentence(found.Omitted)}}, nil
	}
	var all []block
	for i := range found.Requests {
		x := &found.Requests[i]
		b := block{ID: "request-" + strconv.Itoa(i+1), Heading: "Request of step " + visible(x.Step)}
		if x.Omitted != "" {
			b.Text = sentence(x.Omitted)
			all = append(all, b)
			continue
		}
		b.Fields = []field{{"Request", []cell{code(x.Method + " " + x.Address)}}, {"Sender", []cell{code(x.From)}},
			{"Recipients", []cell{code(strings.Join(x.To, ", "))}}}
		for _, name := range slices.Sorted(maps.Keys(x.Headers)) {
			b.Fields = append(b.Fields, field{visible(name), []cell{code(x.Headers[name])}})
		}
		if x.Body != "" {
			b.Document = &document{Text: x.Body}
			if len(x.Body) > maxDocumentBytes {
				b.Document.Text = strings.ToValidUTF8(x.Body[:maxDocumentBytes], "")
				b.Document.Note = "The page shows the first 64 KB. The API has the whole request."
			}
		}
		all = append(all, b)
	}
	return all, nil
}

// recoveryText says how a lost response is cleared up.
var recoveryText = map[effects.Recovery]string{effects.RecoverByKey: "sent again with the same key",
	effects.RecoverByCheck: "the destination is asked", effects.RecoverByOperator: "an operator decides"}

// originBlock shows which change planned an effect.
func originBlock(r *request, e *effects.View) block {
	b := block{ID: "origin", Heading: "Cause", Fields: []field{
		{"Rule", []cell{link(e.Rule, rulePath(e.Rule)), text(fmt.Sprintf("version %d",
			e.RuleVersion))}}, {"Key", []cell{code(e.Key)}},
		{"Object", []cell{r.objectCell(e.Source, e.Account, e.ObjectType, e.ObjectID)}}}}
	if e.Event != 0 {
		event := codeLink(id(e.Event), eventPath(e.Event))
		event.Sub = strings.TrimSpace(visible(e.EventType + " " + e.Origin))
		b.Fields = append(b.Fields, field{"Event", []cell{event}})
	}
	if e.WindowStart != "" {
		b.Fields = append(b.Fields, field{"Window", []cell{text(e.WindowStart + " to " + e.WindowEnd)}})
	}
	for _, run := range []struct {
		name string
		id   int64
	}{{"Planned by", e.Run}, {"Repeated by", int64(e.Forced)}} {
		if run.id != 0 {
			b.Fields = append(b.Fields, field{run.name, []cell{link("run "+id(run.id), runPath(run.id))}})
		}
	}
	if e.LeaseOwner != "" {
		b.Fields = append(b.Fields, field{"Executed by", []cell{code(e.LeaseOwner), text("until"), r.at(e.LeaseUntil)}})
	}
	b.Fields = append(b.Fields, field{"SHA-256 of the data", []cell{code(e.PayloadSHA256)}},
		field{"Last change", []cell{r.at(e.UpdatedAt)}})
	return b
}

// effectActions are the changes that the state of an effect allows.
func effectActions(r *request, e *effects.View) (all []action) {
	change := func(name, text string, danger bool, inputs ...input) {
		all = append(all, r.form(action{Label: sentenceCase(name), Text: text, Danger: danger, Reason: "required",
			Inputs: inputs, Path: "/api/v1/effects/" + id(e.Effect.ID) + "/" + name, Then: effectPath(e.Effect.ID)}))
	}
	if e.State == effects.AwaitingApproval && !e.ApprovalExpired {
		change("approve", "A processor sends the requests and mails of this effect. This page shows those that do "+
			"not depend on a response.", false)
	}
	if step := unknownStep(e); step != nil {
		change("resolve", "Say whether "+stepName(step)+" was executed. Check at the destination first.", false,
			input{Name: "step", Label: "step", Kind: "text", Value: step.Step, Required: true},
			input{Name: "done", Label: "executed", Kind: "select", Required: true,
				Choices: []value{{"yes, it was executed", "true"}, {"no, it was not executed", "false"}}},
			input{Name: "captured", Label: "values of its response, as a JSON object", Kind: "textarea",
				Help: strings.Join(step.Captures, ", ")})
	}
	switch e.State {
	case effects.Failed, effects.Review:
		if s := unknownStep(e); s != nil && s.State != effects.Checking &&
			(s.State != effects.Unknown || s.Recovery == effects.RecoverByOperator) {
			break // an operator must resolve it first
		}
		change("retry", "A processor tries the next step again now.", false)
	case effects.AwaitingApproval, effects.Planned, effects.Running, effects.Done, effects.Rejected, effects.Expired,
		effects.Superseded:
	}
	switch e.State {
	case effects.AwaitingApproval, effects.Planned, effects.Failed, effects.Review:
		change("reject", "The effect ends permanently. Steps that are done stay done.", true)
	case effects.Done, effects.Rejected:
		if undo := undoable(e); undo > 0 && !e.Compensating {
			change("compensate", "Undoes the completed steps, the last one first. Number of steps: "+
				groupDigits(int64(undo))+".", true,
				input{Name: "partial", Label: "undo what can be undone, and keep the rest", Kind: "checkbox"})
		}
	case effects.Running, effects.Expired, effects.Superseded:
	}
	return all
}

// unknownStep returns a step whose outcome is unknown, about which the destination could not be
// asked, or whose response lacked values; nil for none.
func unknownStep(e *effects.View) *effects.Step {
	for i := range e.Steps {
		s := &e.Steps[i]
		if s.State == effects.Unknown || e.State == effects.Review &&
			(s.State == effects.Checking || s.State == effects.StepDone && s.Error != "") {
			return s
		}
	}
	return nil
}

func undoable(e *effects.View) (n int) {
	for i := range e.Steps {
		if s := &e.Steps[i]; s.Undoable && !s.Undo && s.State == effects.StepDone && s.Attempts > 0 {
			n++
		}
	}
	return n
}
