package config

// StringList is a word or a list of words in the file.
type StringList []string

// UnmarshalYAML reads a word or a list.
func (w *StringList) UnmarshalYAML(read func(any) error) error {
	var one string
	if err := read(&one); err == nil {
		*w = nil
		if one != "" {
			*w = StringList{one}
		}
		return nil
	}
	var many []string
	if err := read(&many); err != nil {
		return err
	}
	*w = many
	return nil
}

// MarshalYAML writes a single word without a list.
func (w StringList) MarshalYAML() (any, error) {
	if len(w) == 1 {
		return w[0], nil
	}
	return []string(w), nil
}
