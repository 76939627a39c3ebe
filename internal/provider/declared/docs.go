package declared

import (
	"fmt"
	"strings"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/signature"
)

// signatureText says how deliveries are verified.
func (p *Provider) signatureText() string {
	var out []string
	for _, s := range p.spec.Schemes {
		out = append(out, s.Describe())
	}
	text := strings.Join(out, " Alternative: ")
	if p.spec.SignedItems {
		text += " Each event of a delivery is signed separately, and all signatures must be valid."
	}
	return text
}

func keyText(e *Events) string {
	text := "A digest of the content, because the sender sends no event id."
	if len(e.Key) > 0 {
		text = join(e.Key, ", or else ") + ", or else a digest of the content."
	}
	if e.Split != "" {
		text += " A delivery may contain many events."
	}
	return text
}

func join(templates []signature.Template, separator string) string {
	texts := make([]string, len(templates))
	for i, t := range templates {
		texts[i] = "`" + t.String() + "`"
	}
	return strings.Join(texts, separator)
}

// objectsText lists what is mirrored.
func (p *Provider) objectsText() string {
	var out strings.Builder
	for i := range p.spec.Objects {
		o := &p.spec.Objects[i]
		about := "all other events"
		if len(o.Events) > 0 {
			about = "`" + strings.Join(o.Events, "`, `") + "`"
		}
		if o.Ignored != "" {
			fmt.Fprintf(&out, "- %s: ignored: %s\n", about, o.Ignored)
			continue
		}
		fmt.Fprintf(&out, "- %s: type %s, id %s; %s\n", about, join(o.Type, " or "), join(o.ID, " or "), p.orderText(o))
	}
	if out.Len() == 0 {
		return "None: Postern stores and publishes the events, and mirrors no objects."
	}
	return strings.TrimSpace(out.String())
}

func (p *Provider) orderText(o *Object) string {
	var words []string
	switch {
	case o.Partial != "":
		words = append(words, "refetched, because "+o.Partial)
	case o.State == "":
		words = append(words, "refetched, because the event has no state of the object")
	case o.Version != nil:
		words = append(words, "ordered by `"+o.Version.From.String()+"`")
	case p.spec.Events.OccurredAt != nil:
		words = append(words, "ordered by the event's time, `"+p.spec.Events.OccurredAt.From.String()+"`")
	default:
		words = append(words, "refetched, because no value orders its states")
	}
	if len(o.Deletes) > 0 {
		after := "deleted by the events `" + strings.Join(o.Deletes, "`, `") + "`"
		switch {
		case o.Final && o.FinalWithoutVersion:
			after += ", permanently if the event has no version"
		case o.Final:
			after += ", permanently"
		}
		words = append(words, after)
	}
	return strings.Join(words, "; ")
}

// Schemes returns the signature schemes.
func (p *Provider) Schemes() []*signature.Scheme { return p.spec.Schemes }

// Explain explains step by step why a delivery is verified or rejected. It does so for each event
// if each is signed.
func (p *Provider) Explain(src *provider.Source, d *provider.Delivery) []signature.Step {
	if !p.spec.SignedItems {
		return provider.Explain(src, d, p.spec.Schemes...)
	}
	body, err := p.spec.Events.parse(d.Body)
	if err != nil || len(body.positions) == 0 {
		return []signature.Step{{Name: "events", Detail: "the body has no events that could be signed"}}
	}
	var out []signature.Step
	for i, position := range body.positions {
		one := *d
		one.Body = position.event.Raw()
		out = append(out, signature.Step{Name: "event", OK: true,
			Detail: fmt.Sprintf("%d of %d", i+1, len(body.positions))})
		out = append(out, provider.Explain(src, &one, p.spec.Schemes...)...)
	}
	return out
}
