package config

// Words is a word or a list of words.
type Words []string

// UnmarshalYAML reads a word or a list.
func (w *Words) UnmarshalYAML(read func(any) error) error {
	var one string
	if err := read(&one); err == nil {
		*w = nil
		if one != "" {
			*w = Words{one}
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

// MarshalYAML writes a lone word as such.
func (w Words) MarshalYAML() (any, error) {
	if len(w) == 1 {
		return w[0], nil
	}
	return []string(w), nil
}
