package provider

// FieldUnit is what the values of a field are, where their JSON does not say it.
type FieldUnit string

const (
	// UnixSeconds is a number of seconds since 1970.
	UnixSeconds FieldUnit = "unix seconds"
	// DecimalText is a decimal number in a text, such as an amount of money.
	DecimalText FieldUnit = "decimal text"
)

// FieldCatalog is a provider that describes fields of its objects, for typed views.
type FieldCatalog interface {
	// FieldUnits returns names of fields by their unit. * in a name matches any text. A name
	// describes the fields of all types; a value that is something else keeps its own type.
	FieldUnits() map[FieldUnit][]string
}
