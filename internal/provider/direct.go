package provider

// DirectProvider is a provider whose senders are the user's own programs, which read the response.
// So its deliveries are checked before they are stored, and the response says what is wrong. A
// repeated key with other content is rejected, instead of being stored as a conflict. Either all of
// a delivery is stored, or nothing.
type DirectProvider interface {
	// Accept checks a verified delivery that is no handshake. It is pure. The error is an
	// *InvalidDelivery.
	Accept(src *Source, d *Delivery) (AcceptedDelivery, error)
}

// AcceptedDelivery is a delivery that can be stored.
type AcceptedDelivery struct {
	// Delivery is what is stored and identified: the received delivery, or a copy in the format
	// that the provider stores. The received delivery is not changed.
	Delivery *Delivery
	// Bodies are the bodies of the single events, if the delivery is a list. Each is stored as a
	// delivery of its own, and the receipt is a list. Nil means that the delivery's body is stored.
	Bodies [][]byte
}

// InvalidDelivery is the error of a verified delivery that cannot be stored.
type InvalidDelivery struct {
	// Status is the HTTP status of the response: 400, 413 or 415.
	Status int
	// Detail tells the sender's programmer what is wrong, where, and what to send.
	Detail string
}

func (i *InvalidDelivery) Error() string { return i.Detail }

// Accept returns what p accepts of a delivery. For a provider that is no DirectProvider it returns
// the delivery itself. The error is an *InvalidDelivery.
func Accept(p Provider, src *Source, d *Delivery) (AcceptedDelivery, error) {
	if direct, ok := p.(DirectProvider); ok {
		return direct.Accept(src, d)
	}
	return AcceptedDelivery{Delivery: d}, nil
}
