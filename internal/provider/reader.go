package provider

// What a Reader may have besides.

// Sited is a Reader whose API has an address for each account: the source's, whose key it is. No delivery can say where the key is sent.
type Sited interface {
	// Site fills in the base URL where the source's section api leaves it out. The error says what of the source must be said for that.
	Site(src *Source, api *API) error
	// Home is the account that the key is of, as the mirror names it: who names none means that.
	Home(src *Source) string
}

// Housed is a Reader each of whose calls says whose objects it asks for (a shop by its address, a repository by its name), so that no key of another account answers for them.
type Housed interface {
	// Housed says so.
	Housed()
}

// ObjectControl is a Reader whose credentials may be good for an account and yet not for each of its objects.
type ObjectControl interface {
	// ControlObject takes the place of Control before it is believed that the object is missing.
	ControlObject(src *Source, api *API, account, objectType, objectID string) Call
}

// Allotted is a Reader whose provider allots an account its reads, those of all its programs together, and tells nobody how many are left.
type Allotted interface {
	// Allotted is how many there are within thirty days at least.
	Allotted() int
}

// Typed is a Reader that also reads objects of types that a source describes, API.Types.
type Typed interface {
	// CheckType says what of a type cannot be.
	CheckType(name string, t APIType) error
}

// Stepper is a Reader some of whose objects are read in two steps.
type Stepper interface {
	// Step is the call that the answer to Fetch leads to, and whose answer is the object's; false where Fetch has answered it.
	Step(api *API, account, objectType, objectID string, body []byte) (Call, bool)
}
