package provider

// APIDocs describes what Postern reads of a sender's API, in docs/reference/provider-apis.md. All
// texts are Markdown.
type APIDocs struct {
	// Paths says which part all paths of the API have.
	Paths string
	// Types are the types that the API reads, in the order of their names.
	Types []ReadableType
	// NotRead are the mirrored types that the API does not read, with the reason for each.
	NotRead map[string]string
	// Text has sections with facts about the API, below headings of the third level.
	Text string
}

// ReadableType says how objects of a type are read: paths or fields of the API.
type ReadableType struct {
	Type string
	// List lists all objects; "" if no list has all of them. Changed lists only those that changed
	// since a time; "" if no list does.
	List, Changed string
	// Object reads one object.
	Object string
}

// APIDocumented is a provider that describes what Postern reads of the sender's API.
type APIDocumented interface{ APIDocs() APIDocs }
