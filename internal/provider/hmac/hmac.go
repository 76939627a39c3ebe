// Package hmac is the provider for senders that have no folder of their own: how they sign, how their events are named and what
// those say of objects stands in the configuration of the source. What stands here is a sender of the common kind, whose scheme the
// demo source has, so that the way from a body to an object can be tried without any.
package hmac

import (
	"embed"
	"strings"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/signature"
)

// Name is the word used in configuration.
const Name = "hmac"

//go:embed samples/*.json
var samples embed.FS

// New is the sender of the common kind.
func New() *declared.Provider {
	return declared.New(declared.Spec{
		Name:  Name,
		Title: "Any other sender",
		Schemes: []*signature.Scheme{{
			Name:      "hmac-sha256",
			Signature: signature.Layout{In: []signature.Ref{signature.MustRef("header:X-Signature")}, Prefix: "sha256="},
			Message:   signature.MustTemplate("{body}"),
		}},
		Events: declared.Events{
			Key:      declared.Templates("{json:id}"),
			Type:     declared.Templates("{json:type}"),
			Occurred: declared.At("json:created_at", declared.Auto),
		},
		Objects: []declared.Object{{
			Events:  []string{"order.*"},
			Type:    declared.Templates("order"),
			ID:      declared.Templates("{json:data.id}"),
			State:   "data",
			Version: declared.Own("json:data.version", declared.Integer),
			Deletes: []string{"order.deleted"},
			Final:   true,
		}},
		Samples: []provider.Sample{sample("order.created"), sample("order.updated"), sample("order.deleted")},
		Vary: declared.Vary{
			IDs:      []string{"id"},
			Times:    []declared.Time{*declared.At("json:created_at", declared.RFC3339)},
			Objects:  []string{"data.id"},
			Versions: []string{"data.version"},
			Counter:  "data.note",
		},
		Docs: declared.Docs{
			Setup: "Say in the source how the sender signs (`scheme`), where its events are named (`events`) and, if its objects are to be mirrored, what events " +
				"say of them (`objects`); [configuration.md](configuration.md) lists the settings, and [senders.md](senders.md) has them for many senders. " +
				"How its API is read to find what webhooks lost is said there too (`api`): [reconciliation.md](reconciliation.md#any-other-api). " +
				"The secret is the one that the sender shows for the endpoint; the address to enter there is `https://YOUR-HOST/webhooks/SOURCE`. " +
				"What follows is only what the demo source of `postern dev` has.",
			Links: []string{"https://www.rfc-editor.org/rfc/rfc2104"},
		},
	})
}

func sample(eventType string) provider.Sample {
	return declared.Sample(samples, eventType, "samples/"+eventType+".json")
}

// Of is a provider by this name of what a source's configuration says.
func Of(schemes []*signature.Scheme, events declared.Events, objects []declared.Object, answers Answers) *declared.Provider {
	return declared.New(declared.Spec{
		Name:        Name,
		Title:       "Any other sender",
		Schemes:     schemes,
		Headers:     answers.Headers,
		Events:      events,
		Objects:     objects,
		Challenge:   answers.Challenge.answer(),
		Greet:       answers.Greeting.answer(),
		Acknowledge: answers.acknowledge(),
		Vary:        vary(&events, objects),
	})
}

// vary says how another event is made of a user's body: by what names it, when it happened, and its object.
func vary(events *declared.Events, objects []declared.Object) declared.Vary {
	stem := ""
	if events.Split != "" && !strings.Contains(events.Split, "*") {
		stem = strings.TrimPrefix(events.Split+".0.", "..") // the body itself is the path "."
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
	var out declared.Vary
	if len(events.Key) > 0 {
		out.IDs = paths(events.Key[0], at)
	}
	times := []*declared.Time{events.Occurred}
	for _, o := range objects {
		if v := o.Version; v != nil && v.Unit == declared.Integer {
			if path, ok := at(v.From); ok {
				out.Versions = append(out.Versions, path)
			}
		} else if v != nil {
			times = append(times, &declared.Time{From: v.From, Unit: v.Unit})
		}
		if len(o.ID) > 0 {
			out.Objects = append(out.Objects, paths(o.ID[0], at)...)
		}
	}
	for _, t := range times {
		if t == nil {
			continue
		}
		if path, ok := at(t.From); ok {
			out.Times = append(out.Times, declared.Time{From: signature.Ref{Kind: signature.Root, Name: path}, Unit: t.Unit})
		}
	}
	return out
}

// paths are where the references of a template stand in a body.
func paths(t signature.Template, at func(signature.Ref) (string, bool)) []string {
	var out []string
	for _, r := range t.Refs() {
		if path, ok := at(r); ok {
			out = append(out, path)
		}
	}
	return out
}
