package main

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// settings has PostgreSQL's settings by name. It is a flag that may be repeated.
type settings map[string]string

var settingName = regexp.MustCompile(`^[a-z_][a-z0-9_.]*$`)

// Set parses name=value. PostgreSQL reports an unknown name when it starts.
func (s settings) Set(word string) error {
	name, value, ok := strings.Cut(word, "=")
	name = strings.ToLower(name)
	if !ok || !settingName.MatchString(name) {
		return fmt.Errorf("write name=value, for example shared_buffers=1GB")
	}
	if _, twice := s[name]; twice {
		return fmt.Errorf("%s is given twice: give it once", name)
	}
	s[name] = value
	return nil
}

// String returns the settings for a usage message.
func (s settings) String() string { return strings.Join(s.words(), " ") }

// words returns the settings as name=value, sorted by name.
func (s settings) words() []string {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(s)) {
		words = append(words, name+"="+s[name])
	}
	return words
}
