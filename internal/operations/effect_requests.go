package operations

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/rules"
)

// EffectRequests are the requests that an effect still has to send.
type EffectRequests struct {
	ID int64 `json:"effect"`
	// The steps that still have to be executed, in order. Empty if the effect has ended or is
	// compensated.
	Requests []EffectRequest `json:"requests"`
	// Reason why no request can be shown. Empty otherwise.
	Omitted string `json:"omitted"`
}

// EffectRequest is the request of a step, as its first attempt would send it now.
type EffectRequest struct {
	Step        string `json:"step"`
	Destination string `json:"destination"`
	// Method is MAIL for a mail, whose address is the mail server.
	Method  string `json:"method"`
	Address string `json:"address"`
	// Headers are those of the rule and of the destination. Values that may be secret are masked.
	Headers map[string]string `json:"headers"`
	// From and To are the sender and the recipients of a mail.
	From string   `json:"from"`
	To   []string `json:"to"`
	Body string   `json:"body"`
	// Reason why the request is not shown. Empty if it is complete.
	Omitted string `json:"omitted"`
}

// masked replaces a secret.
const masked = "***"

// ShowEffectRequests renders what an effect sends next, with the configuration of this process. An
// operator reads it before an approval. Errors: events.ErrNotFound.
func ShowEffectRequests(ctx context.Context, pool *pgxpool.Pool, configured []*rules.Rule,
	destinations []config.ResolvedDestination, id int64) (*EffectRequests, error) {
	e, err := Effect(ctx, pool, id)
	if err != nil {
		return nil, err
	}
	stored, err := effects.ShowData(ctx, pool, id)
	if err != nil {
		return nil, err
	}
	out := &EffectRequests{ID: id, Requests: []EffectRequest{}}
	switch e.State {
	case effects.Done, effects.Rejected, effects.Expired, effects.Superseded:
		return out, nil
	case effects.AwaitingApproval, effects.Planned, effects.Running, effects.Failed, effects.Review:
	}
	i := slices.IndexFunc(configured, func(r *rules.Rule) bool { return r.Name == e.Rule })
	var data *rules.TemplateData
	if i >= 0 {
		data, err = effects.ReadTemplateData(stored.Data)
	}
	switch {
	case e.Compensating:
		out.Omitted = "the effect is compensated: its steps show what was executed"
	case i < 0:
		out.Omitted = "this process does not have the rule " + e.Rule + " in its configuration"
	case err != nil:
		out.Omitted = err.Error()
	default:
		r := requestRenderer{effect: e, data: data, destinations: destinations}
		r.render(configured[i], out)
	}
	return out, nil
}

// requestRenderer renders the steps of one effect.
type requestRenderer struct {
	effect       *effects.View
	data         *rules.TemplateData
	destinations []config.ResolvedDestination
}

// render adds the steps that have not ended. After a step that has still to capture values the
// others stay empty, because they may need them.
func (r *requestRenderer) render(rule *rules.Rule, out *EffectRequests) {
	r.data.Steps, r.data.ReservedAt = map[string]map[string]any{}, time.Now()
	capturing := ""
	for i := range rule.Steps {
		s := &rule.Steps[i]
		r.data.StepKey = rules.StepKey(r.effect.Key, r.effect.RuleVersion, r.effect.Forced, s.Name, false)
		captured := map[string]any{}
		if s.Do.Mail != nil {
			captured[rules.CapturedMessageID] = rules.MessageID(r.data.StepKey, s.Do.Mail.From.Address)
		}
		r.data.Steps[s.Name] = captured
		one := EffectRequest{Step: s.Name, Destination: s.Destination, Headers: map[string]string{}, To: []string{}}
		started := slices.IndexFunc(r.effect.Steps, func(x effects.Step) bool { return x.Step == s.Name && !x.Undo })
		switch {
		case started >= 0 && r.effect.Steps[started].State.Ended():
			values, _ := rules.Decode(r.effect.Steps[started].Captured) // the ledger has an object, or nothing
			maps.Copy(captured, values)
			continue
		case started >= 0 && r.effect.Steps[started].Attempts > 0:
			one.Omitted = "it was attempted before, and the same request is sent again"
		case capturing != "":
			one.Omitted = "it may depend on the response to the step " + capturing
		default:
			if err := r.fill(&one, s); err != nil {
				one.Omitted = err.Error()
			}
		}
		if len(s.Capture) > 0 && capturing == "" {
			capturing = s.Name
		}
		out.Requests = append(out.Requests, one)
	}
}

// fill renders the request of a step. An error says why it has none.
func (r *requestRenderer) fill(one *EffectRequest, s *rules.Step) error {
	if s.When != nil {
		wanted, err := s.When.EvalBool(r.data)
		if err != nil {
			return fmt.Errorf("its condition fails: %w", err)
		}
		if !wanted {
			return fmt.Errorf("it is not executed: its condition is false: %s", s.When)
		}
	}
	i := slices.IndexFunc(r.destinations, func(d config.ResolvedDestination) bool { return d.Name == s.Destination })
	if i < 0 {
		return fmt.Errorf("this process does not have the destination %s in its configuration", s.Destination)
	}
	sent, err := s.Do.Render(r.data, r.data.StepKey)
	if err != nil {
		return err
	}
	to := &r.destinations[i]
	one.Method, one.Address, one.From, one.Body = sent.Method, to.Address()+sent.Path, sent.From, sent.Body
	one.To = append(one.To, sent.To...)
	for name := range to.Headers {
		one.Headers[name] = to.Headers.Get(name)
		if slices.ContainsFunc(to.Secrets, func(x string) bool { return strings.Contains(one.Headers[name], x) }) {
			one.Headers[name] = masked
		}
	}
	for name, value := range sent.Headers {
		if !config.IsShownHeader(name) {
			value = masked
		}
		one.Headers[http.CanonicalHeaderKey(name)] = value
	}
	return nil
}
