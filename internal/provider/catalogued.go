package provider

// Catalogued is a provider that can say of which types its objects are.
type Catalogued interface {
	// ObjectTypes are the types, sorted; none: that depends on what is sent. There may be others, of which nothing is known.
	ObjectTypes() []string
}
