package provider

// Direct is a provider whose senders are programs of the user's own, which read what they are answered. So what they send is looked at before it is stored, and what is wrong with it is said; an
// event's key with other content is refused, in place of being kept beside the first as a conflict; and all of a delivery is stored, or nothing.
type Direct interface {
	// Accept looks at a delivery whose sender is proven and that is no greeting. It is pure. The error is an *Invalid.
	Accept(src *Source, d *Delivery) (Accepted, error)
}

// Accepted is a delivery that can be stored.
type Accepted struct {
	// Delivery is what is stored and identified: the delivery that came, or the same in the form in which its provider keeps such. What came is not changed.
	Delivery *Delivery
	// Bodies are the events' own, where the delivery is a list of them: each is stored as if it had come alone, and the receipt is a list, be it of one. nil: the delivery's body is stored.
	Bodies [][]byte
}

// Invalid is the error of a proven delivery that cannot be stored.
type Invalid struct {
	// Status is the answer's: 400, 413 or 415.
	Status int
	// Detail says to the sender's programmer what is wrong, where, and what to send.
	Detail string
}

func (i *Invalid) Error() string { return i.Detail }

// Accept is what p accepts of a delivery; of a provider that is not Direct the delivery itself. The error is an *Invalid.
func Accept(p Provider, src *Source, d *Delivery) (Accepted, error) {
	if direct, ok := p.(Direct); ok {
		return direct.Accept(src, d)
	}
	return Accepted{Delivery: d}, nil
}
