package config

import (
	"strconv"

	"github.com/postern-gateway/postern/internal/effects/rules"
)

// key wants that a step whose destination is told no key names its own, as it is: otherwise nobody but a person could clear up a lost answer.
func (b *ruleBuilder) key(at string, s *EffectStep, scope rules.Scope) {
	found := ""
	for place, text := range s.templates() {
		t, err := rules.CompileText(text, scope)
		if err != nil { // which was told
			return
		}
		named, whole := t.TellsKey()
		if whole {
			return
		}
		if named && (found == "" || place < found) {
			found = place
		}
	}
	if found == "" {
		b.fail(at+".to", "destination %s is told no key (idempotency_header: none), so that a lost answer would have it done again: give the step a check, or once: true, or put {{ step_key }} where the other side knows it by", s.To)
		return
	}
	b.fail(at+"."+found, "what is sent is not the step's key as it is, by which alone a lost answer is cleared up where destination %s is told no key (idempotency_header: none): write the bare {{ step_key }}, as in \"ref-{{ step_key }}\", or give the step a check, or once: true", s.To)
}

// templates are the texts of a call, by their places in the step.
func (s *EffectStep) templates() map[string]string {
	all := map[string]string{"path": s.Path, "text": s.Text}
	for name, text := range s.Headers {
		all["headers."+name] = text
	}
	for name, text := range s.Form {
		all["form."+name] = text
	}
	texts(all, "json", s.JSON)
	return all
}

// texts gathers those of a structure.
func texts(all map[string]string, at string, of any) {
	switch v := of.(type) {
	case string:
		all[at] = v
	case map[string]any:
		for name, in := range v {
			texts(all, at+"."+name, in)
		}
	case []any:
		for i, in := range v {
			texts(all, at+"."+strconv.Itoa(i), in)
		}
	}
}
