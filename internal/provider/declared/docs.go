package declared

import (
	"fmt"
	"strings"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/signature"
)

// signatureText says how deliveries are proven.
func (p *Provider) signatureText() string {
	var out []string
	for _, s := range p.spec.Schemes {
		out = append(out, s.Describe())
	}
	text := strings.Join(out, " Or: ")
	if p.spec.EachItem {
		text += " Each event of a delivery is signed by itself, and all must be right."
	}
	return text
}

func keyText(e *Events) string {
	text := "A digest of the content: the sender names no event."
	if len(e.Key) > 0 {
		text = join(e.Key, ", else ") + ", else a digest of the content."
	}
	if e.Split != "" {
		text += " A delivery holds many events."
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

// objectsText is a list of what is mirrored.
func (p *Provider) objectsText() string {
	var out strings.Builder
	for i := range p.spec.Objects {
		o := &p.spec.Objects[i]
		about := "all other events"
		if len(o.Events) > 0 {
			about = "`" + strings.Join(o.Events, "`, `") + "`"
		}
		if o.Ignored != "" {
			fmt.Fprintf(&out, "- %s: none; %s\n", about, o.Ignored)
			continue
		}
		fmt.Fprintf(&out, "- %s: %s, named by %s; %s\n", about, join(o.Type, " or "), join(o.ID, " or "), p.orderText(o))
	}
	if out.Len() == 0 {
		return "None: events are kept and published, and mirror no object."
	}
	return strings.TrimSpace(out.String())
}

func (p *Provider) orderText(o *Object) string {
	var words []string
	switch {
	case o.Partial != "":
		words = append(words, "part of it only ("+o.Partial+"), so a look is owed")
	case o.State == "":
		words = append(words, "without its state, so a look is owed")
	case o.Version != nil:
		words = append(words, "ordered by `"+o.Version.From.String()+"`")
	case p.spec.Events.Occurred != nil:
		words = append(words, "ordered by the event's time, `"+p.spec.Events.Occurred.From.String()+"`")
	default:
		words = append(words, "without any order, so a look is owed")
	}
	if len(o.Deletes) > 0 {
		after := "gone after `" + strings.Join(o.Deletes, "`, `") + "`"
		switch {
		case o.Final && o.FinalBare:
			after += ", for good where the delete carries no version"
		case o.Final:
			after += ", for good"
		}
		words = append(words, after)
	}
	return strings.Join(words, "; ")
}

// Schemes are how the sender signs.
func (p *Provider) Schemes() []*signature.Scheme { return p.spec.Schemes }

// Explain tells step by step why a delivery is proven or not; of each event where each is signed by itself.
func (p *Provider) Explain(src *provider.Source, d *provider.Delivery) []signature.Step {
	if !p.spec.EachItem {
		return provider.Explain(src, d, p.spec.Schemes...)
	}
	body, err := p.spec.Events.read(d.Body)
	if err != nil || len(body.places) == 0 {
		return []signature.Step{{Name: "events", Detail: "the body holds no events that could be signed"}}
	}
	var out []signature.Step
	for i, place := range body.places {
		one := *d
		one.Body = place.item.Raw()
		out = append(out, signature.Step{Name: "event", OK: true, Detail: fmt.Sprintf("%d of %d", i+1, len(body.places))})
		out = append(out, provider.Explain(src, &one, p.spec.Schemes...)...)
	}
	return out
}
