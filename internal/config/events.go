package config

// Events says where a delivery contains its events, and which values are their key, type, account
// and time. It is for provider: hmac and standardwebhooks. Values are texts with references:
// {json:PATH} in the event, {root:PATH} in the whole body, {form:FIELD}, {header:NAME},
// {query:NAME}, {type} (not in type itself), {index} (the event's position in its delivery, from 0)
// and {content} (a digest of the event). A list of texts means alternatives: Postern uses the first
// one whose references all have a value.
type Events struct {
	// Body is the format of bodies: json, form, or payload (a form whose field payload contains
	// JSON). Postern tries the formats of a list in order.
	Body StringList `yaml:"body,omitempty" unset:"json"`
	// Split is the path of the list of events, if a delivery has many events, e.g. data.events. '.'
	// means that the body is the list. entry.*.changes means the list changes in each element of
	// the list entry; {root:entry.*.id} then refers to the element that contains the event.
	Split string `yaml:"split,omitempty"`
	// Item is the path of the event in an element of that list. Leave it empty if the element is
	// the event.
	Item string `yaml:"item,omitempty"`
	// Key identifies an event permanently: a later delivery with the same key is a duplicate. Leave
	// it empty if the sender has no such value: Postern then uses a digest of the content.
	Key StringList `yaml:"key,omitempty"`
	// EveryDelivery: true makes each delivery without a key a separate event, even if its content
	// is repeated. It is for senders whose notifications look alike.
	EveryDelivery bool `yaml:"every_delivery,omitempty" unset:"false"`
	// Type is the event's type.
	Type StringList `yaml:"type,omitempty"`
	// Account is the tenant, for a source with several tenants; see accounts.
	Account StringList `yaml:"account,omitempty"`
	// Occurred is the time of the event.
	Occurred EventTime `yaml:"occurred,omitempty"`
	// APIVersion is the version of the sender's API that produced the body.
	APIVersion StringList `yaml:"api_version,omitempty"`
	// Omit are paths in the event whose values may differ between deliveries of the same event,
	// e.g. a counter of attempts.
	Omit []string `yaml:"omit,omitempty"`
	// Headers are stored with each event. Postern also stores the headers that the scheme and these
	// settings use.
	Headers []string `yaml:"headers,omitempty"`
}

// EventTime is a time in an event.
type EventTime struct {
	// From is the place of the value: json:PATH in the event, root:PATH in the whole body or
	// form:FIELD.
	From string `yaml:"from,omitempty"`
	// Unit is s, ms, rfc3339 or auto. With auto, Postern recognizes the format.
	Unit string `yaml:"unit,omitempty" unset:"auto"`
}

// Object says how events of some types describe an object.
type Object struct {
	// Events are the event types to which this object applies. * matches any text. Leave it empty
	// for all types. Postern uses the first object that matches.
	Events StringList `yaml:"events,omitempty"`
	// Ignored gives the reason why events of these types change no object. It excludes all other
	// settings except events.
	Ignored string `yaml:"ignored,omitempty"`
	// Type is the object's type: a text with references {json:PATH}, {root:PATH}, {form:FIELD} and
	// {type}.
	Type StringList `yaml:"type,omitempty"`
	// ID is the object's id, with the same references. For provider: api it may be empty: the
	// CloudEvent's subject is then the id.
	ID StringList `yaml:"id,omitempty"`
	// State is the path of the complete object in the event, or root:PATH; '.' is the event itself.
	// Leave it empty if events do not contain the state. Postern then refetches the object from the
	// sender's API.
	State string `yaml:"state,omitempty"`
	// Before is the path of the previous values of the changed fields.
	Before string `yaml:"before,omitempty"`
	// Changes is the path of the changed fields, each with its previous and current value:
	// {"previous": 1, "current": 2}.
	Changes string `yaml:"changes,omitempty"`
	// Version is the value that orders the states of an object: its version or its time of change.
	// Leave it empty to use the event's time.
	Version ObjectVersion `yaml:"version,omitempty"`
	// Deletes are the event types that delete the object. * matches any text.
	Deletes StringList `yaml:"deletes,omitempty"`
	// Final: true says that deletes are permanent, because the sender never reuses an id.
	Final bool `yaml:"final,omitempty" unset:"false"`
	// Partial gives the reason why the state is only a part of the object. Postern then refetches
	// the object.
	Partial string `yaml:"partial,omitempty"`
	// IgnoredPaths are paths in the state whose values change without a new version. Comparisons of
	// states ignore them. A path applies to each element of an array.
	IgnoredPaths []string `yaml:"ignored_paths,omitempty"`
}

// ObjectVersion is the value that orders the states of an object.
type ObjectVersion struct {
	// From is the place of the value: json:PATH in the event, root:PATH in the whole body or
	// form:FIELD.
	From string `yaml:"from,omitempty"`
	// Unit is s, ms, rfc3339, integer (a number that grows with each change) or auto. With auto,
	// Postern recognizes the format of the time. If the times of a type come from more than one
	// field, here and in api.objects, Postern compares them in whole seconds.
	Unit string `yaml:"unit,omitempty" unset:"auto"`
	// MayNotAdvance: true says that an object can change without a new version.
	MayNotAdvance bool `yaml:"may_not_advance,omitempty" unset:"false"`
}

// Handshake says how Postern responds when a sender checks that the address is yours, for provider:
// hmac.
type Handshake struct {
	// Challenge is the response to an unsigned GET or HEAD request.
	Challenge Challenge `yaml:"challenge,omitempty"`
	// Signed is the response to a signed POST that is not an event. Postern does not store that
	// request.
	Signed SignedHandshake `yaml:"signed,omitempty"`
}

// Challenge is an unsigned GET or HEAD request.
type Challenge struct {
	// Echo is the value to send back: query:NAME or header:NAME. Write `none` if the sender expects
	// only status 200.
	Echo string `yaml:"echo,omitempty"`
	// Member is the member of a JSON object that carries the value in the response. Leave it empty
	// for plain text.
	Member string `yaml:"as,omitempty"`
	// Token is a value that the sender must send. Set it if you configured one at the sender.
	Token ChallengeToken `yaml:"token,omitempty"`
}

// ChallengeToken is a token that a sender must send with its challenge: its place, and exactly one
// of value, env and file.
type ChallengeToken struct {
	// From is the place where the sender puts it: query:NAME or header:NAME.
	From string `yaml:"from,omitempty"`
	// Value is the token itself. Prefer env or file.
	Value MaskedString `yaml:"value,omitempty"`
	// Env names the variable that holds the token.
	Env string `yaml:"env,omitempty"`
	// File names the file that holds the token. Postern removes one line break at its end.
	File string `yaml:"file,omitempty"`

	token []byte
}

// SignedHandshake is a signed POST that is not an event.
type SignedHandshake struct {
	// When is the value by which Postern recognizes a handshake.
	When Condition `yaml:"when,omitempty"`
	// Echo is the value to send back: json:PATH, form:FIELD, header:NAME or query:NAME. Leave it
	// empty for an empty response.
	Echo string `yaml:"echo,omitempty"`
	// Member is the member of a JSON object that carries the value in the response. Leave it empty
	// for plain text.
	Member string `yaml:"as,omitempty"`
}

// Reply replaces the default response to a stored delivery, for provider: hmac.
type Reply struct {
	// Status is the response's status, from 200 to 299. Leave the whole section out for the default
	// response.
	Status int `yaml:"status,omitempty"`
	// ContentType is the type of the response's body.
	ContentType string `yaml:"content_type,omitempty"`
	// Body is the response's body.
	Body string `yaml:"body,omitempty"`
}
