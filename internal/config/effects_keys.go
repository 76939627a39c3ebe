package config

import (
	"strconv"

	"github.com/postern-gateway/postern/internal/effects/rules"
)

// checkStepKey requires that a step sends its unchanged key where the destination has no
// idempotency header. Otherwise only an operator could resolve a lost response.
func (b *ruleBuilder) checkStepKey(at string, s *EffectStep, scope rules.Scope) {
	found := ""
	for place, text := range s.templates() {
		t, err := rules.CompileText(text, scope)
		if err != nil { // already reported
			return
		}
		named, unchanged := t.UsesStepKey()
		if unchanged {
			return
		}
		if named && (found == "" || place < found) {
			found = place
		}
	}
	if found == "" {
		b.fail(at+".to", "destination %s gets no key (idempotency_header: none), so after a lost response the step "+
			"would be executed twice: add a check, or at_most_once: true, or put {{ step_key }} where the "+
			"destination uses it as its key", s.To)
		return
	}
	b.fail(at+"."+found, "changes the step's key, but only the unchanged key can resolve a lost response "+
		"where destination %s gets no key (idempotency_header: none): write the bare {{ step_key }}, as in "+
		"\"ref-{{ step_key }}\", or add a check, or at_most_once: true", s.To)
}

// templates returns the texts of a call by their place in the step.
func (s *EffectStep) templates() map[string]string {
	all := map[string]string{"path": s.Path, "text": s.Text}
	for name, text := range s.Headers {
		all["headers."+name] = text
	}
	for name, text := range s.Form {
		all["form."+name] = text
	}
	collectTexts(all, "json", s.JSON)
	return all
}

// collectTexts adds the texts of a structure.
func collectTexts(all map[string]string, at string, of any) {
	switch v := of.(type) {
	case string:
		all[at] = v
	case map[string]any:
		for name, in := range v {
			collectTexts(all, at+"."+name, in)
		}
	case []any:
		for i, in := range v {
			collectTexts(all, at+"."+strconv.Itoa(i), in)
		}
	}
}
