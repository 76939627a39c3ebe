package provider

import (
	"net/http"
	"time"
)

// SentDelivery is one attempt of the provider to deliver one event.
type SentDelivery struct {
	// ID identifies the attempt in the API. Key is the event's key, as Identify returns it.
	ID, Key string
	// SentAt is when it was sent, on the provider's clock.
	SentAt time.Time
	// Failed means that the provider considers it not received.
	Failed bool
}

// DeliveryLister is a provider whose API lists the delivery attempts of its webhooks, and returns
// the content of each. Its methods are pure, as those of Provider.
type DeliveryLister interface {
	Reader
	// DeliveryRetention is how long the provider keeps deliveries.
	DeliveryRetention() time.Duration
	// ListDeliveries returns the call for a page of the deliveries of a webhook (one of
	// API.Webhooks), newest first. An empty cursor means the first page.
	ListDeliveries(api *API, hook, cursor string) Call
	// DeliveryPage splits a page. next is the cursor of the next page, or "" after the last.
	DeliveryPage(header http.Header, body []byte) (page []SentDelivery, next string, err error)
	// FetchDelivery returns the call for one delivery with its content.
	FetchDelivery(api *API, hook, id string) Call
	// ReadDelivery converts the response to FetchDelivery into the delivery that the webhook sent
	// or should have sent, so that Identify and Observe read it unchanged.
	ReadDelivery(body []byte) (*Delivery, error)
	// Redeliver returns the call that asks the provider to send a delivery again.
	Redeliver(api *API, hook, id string) Call
}

// Locator is a Reader whose API reads objects by an address that cannot be built from the object's
// name alone, but from its state or its events.
type Locator interface {
	// Locate returns the call that reads an object of an account. It uses the object's state in the
	// mirror (nil if there is none) and its newest stored event that is no refetch (nil if there is
	// none). It returns false if these are not enough. check is a call that succeeds whenever the
	// same credentials could read the object if it existed. If check is the zero Call, nothing
	// proves that the object is missing, so it is never treated as missing.
	Locate(api *API, account, objectType, objectID string, state []byte, newest *StoredEvent) (call, check Call,
		ok bool)
}
