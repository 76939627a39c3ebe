// Package hmac is the provider for senders that have no folder of their own: how they sign, how their events are named and what
// those say of objects stands in the configuration of the source. What stands here is a sender of the common kind, whose scheme the
// demo source has, so that the way from a body to an object can be tried without any.
package hmac

import (
	"embed"

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
			IDs:     []string{"id"},
			Times:   []declared.Time{*declared.At("json:created_at", declared.RFC3339)},
			Objects: []string{"data.id"},
			Counter: "data.note",
		},
		Docs: declared.Docs{
			Setup: "Say in the source how the sender signs (`scheme`), where its events are named (`events`) and, if its objects are to be mirrored, what events " +
				"say of them (`objects`); [configuration.md](configuration.md) lists the settings, and [senders.md](senders.md) has them for many senders. " +
				"The secret is the one that the sender shows for the endpoint; the address to enter there is `https://YOUR-HOST/webhooks/SOURCE`. " +
				"What follows is only what the demo source of `postern dev` has.",
			Links: []string{"https://www.rfc-editor.org/rfc/rfc2104"},
		},
	})
}

func sample(eventType string) provider.Sample {
	body, err := samples.ReadFile("samples/" + eventType + ".json")
	if err != nil {
		panic(err) // a file's name is misspelt above
	}
	return provider.Sample{Type: eventType, Body: body}
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
	})
}
