package config

// Events is where the events of a delivery are and how they are named, for provider: hmac and standardwebhooks. Names are texts with
// references: {json:PATH} in the event, {root:PATH} in the whole body, {form:FIELD}, {header:NAME}, {query:NAME}, {type} (but in type
// itself), {index} (the event's place in its delivery, from 0) and {content} (a digest of the event). Of a list the first counts that is
// complete.
type Events struct {
	// Body is how bodies are written, a word or a list in the order in which they are tried: json, form, or payload (a form whose
	// field payload holds JSON).
	Body Words `yaml:"body,omitempty" shown:"json"`
	// Split is the path of the list of events, where a delivery holds many: data.events; '.' where the body is the list;
	// entry.*.changes for the lists changes of all elements of the list entry, of which {root:entry.*.id} names the event's own.
	Split string `yaml:"split,omitempty"`
	// Item is the path of the event in an element of that list, where it is not the element.
	Item string `yaml:"item,omitempty"`
	// Key names an event for good: what comes again under one key is no new event. Leave empty where the sender names none; then a
	// digest of the content does.
	Key Words `yaml:"key,omitempty"`
	// EveryDelivery: true makes each delivery that no key names an event of its own, also where it was sent again: for senders whose
	// notifications look alike.
	EveryDelivery bool `yaml:"every_delivery,omitempty" shown:"false"`
	// Type is the event's type.
	Type Words `yaml:"type,omitempty"`
	// Account is the tenant, where one source takes several; see accounts.
	Account Words `yaml:"account,omitempty"`
	// Occurred is the time of the event.
	Occurred EventTime `yaml:"occurred,omitempty"`
	// APIVersion is the version of the sender's API that rendered the body.
	APIVersion Words `yaml:"api_version,omitempty"`
	// Omit are paths in the event that may differ between deliveries of one event, e.g. a counter of attempts.
	Omit []string `yaml:"omit,omitempty"`
	// Headers are kept with each event besides those that the scheme and these settings refer to.
	Headers []string `yaml:"headers,omitempty"`
}

// EventTime is a time or a version in an event.
type EventTime struct {
	// From is where it stands: json:PATH in the event, root:PATH in the whole body or form:FIELD.
	From string `yaml:"from,omitempty"`
	// Unit is s, ms, rfc3339, or auto: any of these by its look.
	Unit string `yaml:"unit,omitempty" shown:"auto"`
}

// Object is what events of some types say of an object.
type Object struct {
	// Events are the types that this is about: words, in which * stands for any text. Leave empty for all. The first object whose
	// events fit counts.
	Events Words `yaml:"events,omitempty"`
	// Ignored says in words why events of these types concern no object; then nothing else is set.
	Ignored string `yaml:"ignored,omitempty"`
	// Type is the object's type: a text with references {json:PATH}, {root:PATH}, {form:FIELD} and {type}.
	Type Words `yaml:"type,omitempty"`
	// ID is the object's id, likewise. For provider: api it may be left empty: then it is the subject of the CloudEvent.
	ID Words `yaml:"id,omitempty"`
	// State is the path of the whole object in the event, or root:PATH; '.' is the event itself. Leave empty where events carry no
	// state: then they are reasons to look at the sender's API.
	State string `yaml:"state,omitempty"`
	// Before is the path of the old values of what changed.
	Before string `yaml:"before,omitempty"`
	// Changes is the path of what changed, where each field has its old and its new value: {"previous": 1, "current": 2}.
	Changes string `yaml:"changes,omitempty"`
	// Version is what orders the states of an object: its own version or time of change. Leave empty for the event's time.
	Version ObjectVersion `yaml:"version,omitempty"`
	// Deletes are the types, with * likewise, after which the object is gone.
	Deletes Words `yaml:"deletes,omitempty"`
	// Final: true says that deletes are for good, since the sender never gives an id again.
	Final bool `yaml:"final,omitempty" shown:"false"`
	// Partial says in words why the state is only a part of the object: then events are reasons to look.
	Partial string `yaml:"partial,omitempty"`
	// Volatile are paths in the state that change without a new version, and are left out where states are compared. A path goes through each element of an array.
	Volatile []string `yaml:"volatile,omitempty"`
}

// ObjectVersion is what orders the states of an object.
type ObjectVersion struct {
	// From is where it stands: json:PATH in the event, root:PATH in the whole body or form:FIELD.
	From string `yaml:"from,omitempty"`
	// Unit is s, ms, rfc3339, integer (a number that grows with each change), or auto: a time by its look. Times of a type
	// that are read from more than one field, here and in api.objects, are compared in whole seconds.
	Unit string `yaml:"unit,omitempty" shown:"auto"`
	// Still: true says that it is not known to change with every change of the object.
	Still bool `yaml:"still,omitempty" shown:"false"`
}

// Handshake is how a sender finds out that the address is ours, for provider: hmac.
type Handshake struct {
	// Challenge answers a GET or HEAD that is signed by nobody.
	Challenge Challenge `yaml:"challenge,omitempty"`
	// Greeting answers a signed POST that is no event; nothing of it is stored.
	Greeting Greeting `yaml:"greeting,omitempty"`
}

// Challenge is a GET or HEAD that is signed by nobody.
type Challenge struct {
	// Echo is the value that is sent back: query:NAME or header:NAME; or `none`, where the sender only wants a 200.
	Echo string `yaml:"echo,omitempty"`
	// As is the member of a JSON object under which it is sent back. Leave empty to send it as plain text.
	As string `yaml:"as,omitempty"`
	// Token is what the sender must show, where the two of you agreed on one.
	Token ChallengeToken `yaml:"token,omitempty"`
}

// ChallengeToken is what a sender must show with its challenge: where it stands, and exactly one of value, env and file.
type ChallengeToken struct {
	// From is where the sender shows it: query:NAME or header:NAME.
	From string `yaml:"from,omitempty"`
	// Value is the token itself. Prefer env or file.
	Value Hidden `yaml:"value,omitempty"`
	// Env names the variable that holds the token.
	Env string `yaml:"env,omitempty"`
	// File names the file that holds the token; one line end after it is left out.
	File string `yaml:"file,omitempty"`

	token []byte
}

// Greeting is a signed POST that is no event.
type Greeting struct {
	// When is the value that greetings have, and nothing else.
	When Condition `yaml:"when,omitempty"`
	// Echo is the value that is sent back: json:PATH, form:FIELD, header:NAME or query:NAME. Leave empty for an empty answer.
	Echo string `yaml:"echo,omitempty"`
	// As is the member of a JSON object under which it is sent back. Leave empty to send it as plain text.
	As string `yaml:"as,omitempty"`
}

// Reply is the answer to a stored delivery in place of the receipt, for provider: hmac.
type Reply struct {
	// Status is the answer's, from 200 to 299. Leave the whole reply out for the receipt.
	Status int `yaml:"status,omitempty"`
	// ContentType is the answer's, where it has a body.
	ContentType string `yaml:"content_type,omitempty"`
	// Body is the answer's text.
	Body string `yaml:"body,omitempty"`
}
