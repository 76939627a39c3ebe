package provider

// The interfaces below are optional extensions of a Reader.

// BaseURLReader is a Reader whose API has an address for each account. The address is that of the
// source's account, which the key belongs to. A delivery never decides where the key is sent.
type BaseURLReader interface {
	// SetBaseURL fills in the base URL if the source's section api leaves it out. The error says
	// which setting of the source is needed for that.
	SetBaseURL(src *Source, api *API) error
	// KeyAccount returns the account that the key belongs to, as the mirror names it. It is the
	// default account.
	KeyAccount(src *Source) string
}

// AccountBoundReader is a Reader whose calls all name the account (a shop by its address, a
// repository by its name). So a key of another account cannot return its own objects instead.
type AccountBoundReader interface {
	// CallsNameAccount marks such a Reader.
	CallsNameAccount()
}

// ObjectCredentialChecker is a Reader whose credentials may be valid for an account, but not for
// each of its objects.
type ObjectCredentialChecker interface {
	// ObjectCredentialCheck replaces CredentialCheck before an object is treated as missing.
	ObjectCredentialCheck(src *Source, api *API, account, objectType, objectID string) Call
}

// CallLimiter is a Reader whose provider limits the reads of an account, by all its programs
// together, and does not report how many remain.
type CallLimiter interface {
	// CallLimit returns the minimum number of allowed calls within thirty days.
	CallLimit() int
}

// TypeChecker is a Reader that also reads objects of types that a source describes, in API.Types.
type TypeChecker interface {
	// CheckType returns what is wrong with the description of a type.
	CheckType(name string, t APIType) error
}

// TwoStepReader is a Reader that reads some objects with two calls.
type TwoStepReader interface {
	// SecondCall returns the call that follows the response to Fetch, and whose response is the
	// object. It returns false if the response to Fetch is the object.
	SecondCall(api *API, account, objectType, objectID string, body []byte) (Call, bool)
}
