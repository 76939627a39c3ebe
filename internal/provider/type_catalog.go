package provider

// TypeCatalog is a provider that can list the types of its objects.
type TypeCatalog interface {
	// ObjectTypes returns the types, sorted. It returns none if the types depend on what is sent.
	// Other types than these may occur.
	ObjectTypes() []string
}
