package settings

import "reflect"

// List is an element or a list of elements in the file.
type List[T any] []T

// UnmarshalYAML reads an element or a list.
func (l *List[T]) UnmarshalYAML(read func(any) error) error {
	var one T
	if err := read(&one); err == nil {
		*l = nil
		if !reflect.ValueOf(&one).Elem().IsZero() {
			*l = List[T]{one}
		}
		return nil
	}
	var many []T
	if err := read(&many); err != nil {
		return err
	}
	*l = many
	return nil
}

// MarshalYAML writes a single element without a list.
func (l List[T]) MarshalYAML() (any, error) {
	if len(l) == 1 {
		return l[0], nil
	}
	return []T(l), nil
}
