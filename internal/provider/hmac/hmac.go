// Package hmac is the provider for senders without a package of their own. The source's
// configuration says how they sign, which value identifies an event, and what events say about
// objects. New describes a common kind of sender, whose scheme the demo source uses.
package hmac

import (
	"embed"
	"strings"

	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/signature"
)

// Name is the provider's name in the configuration.
const Name = "hmac"

//go:embed spec.yaml samples
var files embed.FS

// New returns the provider of a common kind of sender.
var New = declared.Embedded(files, nil)

// Of returns the provider of a source's configuration.
func Of(schemes []*signature.Scheme, events declared.Events, objects []declared.Object,
	handshake declared.Handshake, reply declared.Reply) *declared.Provider {
	spec := declared.Spec{
		Name:     Name,
		Title:    "Any other sender",
		Schemes:  schemes,
		Events:   events,
		Objects:  objects,
		Variants: variantPaths(&events, objects),
	}
	spec.Respond(handshake, reply)
	return declared.New(spec)
}

// variantPaths says how to make another event from a user's body: the paths of its key, its times,
// and its object.
func variantPaths(events *declared.Events, objects []declared.Object) declared.Variants {
	stem := ""
	if events.Split != "" && !strings.Contains(events.Split, "*") {
		stem = strings.TrimPrefix(events.Split+".0.", "..") // the path of the body itself is "."
		if events.Item != "" {
			stem += events.Item + "."
		}
	}
	at := func(r signature.Ref) (string, bool) {
		switch r.Kind {
		case signature.JSON:
			return stem + r.Name, true
		case signature.Root, signature.Form:
			return r.Name, true
		}
		return "", false
	}
	var out declared.Variants
	if len(events.Key) > 0 {
		out.IDs = refPaths(events.Key[0], at)
	}
	times := []*declared.Time{events.OccurredAt}
	for _, o := range objects {
		if v := o.Version; v != nil && v.Unit == declared.Integer {
			if path, ok := at(v.From); ok {
				out.Versions = append(out.Versions, path)
			}
		} else if v != nil {
			times = append(times, &declared.Time{From: v.From, Unit: v.Unit})
		}
		if len(o.ID) > 0 {
			out.Objects = append(out.Objects, refPaths(o.ID[0], at)...)
		}
	}
	for _, t := range times {
		if t == nil {
			continue
		}
		if path, ok := at(t.From); ok {
			out.Times = append(out.Times, declared.Time{From: signature.Ref{Kind: signature.Root, Name: path},
				Unit: t.Unit})
		}
	}
	return out
}

// refPaths returns the paths of a template's references in a body.
func refPaths(t signature.Template, at func(signature.Ref) (string, bool)) []string {
	var out []string
	for _, r := range t.Refs() {
		if path, ok := at(r); ok {
			out = append(out, path)
		}
	}
	return out
}
