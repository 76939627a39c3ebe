package provider

import (
	"net/http"
	"time"
)

// Sent is a delivery that the provider says it has made: one attempt to send one event.
type Sent struct {
	// ID names the attempt in the API, and Key the event: the key that Identify gives it.
	ID, Key string
	// At is when it was sent, on the provider's clock.
	At time.Time
	// Failed: the provider takes it for not received.
	Failed bool
}

// DeliveryLister is a provider whose API tells what its webhooks were sent, attempt by attempt, and gives each with what it carried. Its methods are pure,
// as Provider's are.
type DeliveryLister interface {
	Reader
	// DeliveriesKept is how long the provider keeps what it has sent.
	DeliveriesKept() time.Duration
	// ListDeliveries asks for a page of what a webhook (one of the API's Hooks) was sent, the newest first. An empty cursor is the first page.
	ListDeliveries(api *API, hook, cursor string) Call
	// DeliveryPage splits a page. next is the cursor of the following page, "" after the last.
	DeliveryPage(header http.Header, body []byte) (page []Sent, next string, err error)
	// FetchDelivery asks for one delivery with what it carried.
	FetchDelivery(api *API, hook, id string) Call
	// ReadDelivery makes of the answer to FetchDelivery what came, or should have come, by the webhook, so that Identify and Observe read it unchanged.
	ReadDelivery(body []byte) (*Delivery, error)
	// Redeliver asks the provider to send a delivery again.
	Redeliver(api *API, hook, id string) Call
}

// Locator is a Reader whose API reads objects by an address that their name in the mirror does not tell, but what is known of them does.
type Locator interface {
	// Locate is the call that reads an object of an account, by its state in the mirror (nil where none is kept) and the newest event of it that is stored and is no look
	// (nil where there is none); false where these do not tell. proof is a call that is found wherever the same credentials would see the object if it were there;
	// the zero Call: nothing shows that, and so the object is never believed to be missing.
	Locate(api *API, account, objectType, objectID string, state []byte, newest *Stored) (call, proof Call, ok bool)
}
