// Package paddle is the provider Paddle Billing. An event contains its whole entity as it was at
// that moment, and Paddle documents that events are ordered by their time. While a secret is
// replaced a delivery may have a signature of each.
package paddle

import (
	"embed"
	"strings"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/signature"
)

//go:embed samples/*.json
var files embed.FS

// New returns the provider.
func New() *declared.Provider { return declared.New(spec) }

// entities are the objects of events, which are the first word of their types.
var entities = []string{"address", "adjustment", "business", "customer", "discount", "discount_group", paymentMethod,
	"payout", "price", "product", "report", "subscription", "transaction"}

// paymentMethod is the only entity that is ever deleted; the others are archived.
const paymentMethod = "payment_method"

var spec = declared.Spec{
	Name: "paddle", Title: "Paddle Billing",
	Schemes: []*signature.Scheme{{
		Name: "paddle-h1",
		Signature: signature.Layout{In: []signature.Ref{signature.MustRef("header:Paddle-Signature")}, Separator: ";",
			KeySeparator: "=", Item: "h1"},
		Timestamp: &signature.Clock{From: signature.MustRef("item:ts")},
		Message:   signature.MustTemplate("{timestamp}:{body}"),
	}},
	Events: declared.Events{
		Key:        declared.Templates("{json:event_id}"),
		Type:       declared.Templates("{json:event_type}"),
		OccurredAt: declared.TimeAt("json:occurred_at", declared.RFC3339),
		// The same event has another notification id for each destination.
		Omit: []string{"notification_id"},
	},
	Objects: objects(),
	Samples: []provider.Sample{
		declared.LoadSample(files, "customer.created", "samples/customer_created.json"),
		declared.LoadSample(files, "subscription.created", "samples/subscription_created.json"),
		declared.LoadSample(files, "subscription.updated", "samples/subscription_updated.json"),
		declared.LoadSample(files, "transaction.completed", "samples/transaction_completed.json"),
		declared.LoadSample(files, "payment_method.saved", "samples/payment_method_saved.json"),
		declared.LoadSample(files, "payment_method.deleted", "samples/payment_method_deleted.json"),
	},
	Variants: declared.Variants{
		IDs: []string{"event_id", "notification_id"},
		Times: []declared.Time{*declared.TimeAt("json:occurred_at", declared.RFC3339),
			*declared.TimeAt("json:data.updated_at", declared.RFC3339)},
		Objects: []string{"data.id"},
		Counter: "data.name",
	},
	Docs: provider.Docs{
		Setup: "Under *Developer tools*, *Notifications*, create a destination of type webhook with the ingest " +
			"URL. The secret is its *secret key* (`pdl_ntfset_...`), with its prefix. Sandbox and live have " +
			"separate destinations and secrets: use one source for each. Paddle's own Node library accepts a " +
			"signature for 5 s only. Postern accepts it for 300 s: a delivery that is sent again in that time is " +
			"the same event, because its id is signed. Set `tolerance` for less.",
		Objects: "- `" + strings.Join(entities, "`, `") + "`: id `data.id`, the whole object in `data`; ordered by " +
			"the event's time, `occurred_at`. `payment_method.deleted` deletes a payment method. No other event " +
			"deletes an object.\n- all other events: ignored",
		Links: []string{"https://developer.paddle.com/webhooks/overview",
			"https://developer.paddle.com/webhooks/signature-verification",
			"https://developer.paddle.com/webhooks/about/how-webhooks-work"},
		Unconfirmed: []string{
			"Paddle waits 5 s for a response.",
			"A retry is signed again, with a new time. If it is not, Postern rejects retries later than the " +
				"tolerance as stale.",
			"`updated_at` of an entity advances with every change. Postern does not use it: it orders events by " +
				"`occurred_at`, as Paddle recommends.",
		},
	},
}

func objects() []declared.Object {
	var out []declared.Object
	id := declared.Templates("{json:data.id}")
	for _, entity := range entities {
		o := declared.Object{Events: []string{entity + ".*"}, Type: declared.Templates(entity), ID: id, State: "data"}
		if entity == paymentMethod {
			o.Deletes = []string{paymentMethod + ".deleted"}
		}
		out = append(out, o)
	}
	return append(out, declared.Object{Ignored: "events of this type are about no object that is mirrored"})
}
