package main

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// settings are those that PostgreSQL is given, by name: the value of a flag that may come many
// times.
type settings map[string]string

var settingName = regexp.MustCompile(`^[a-z_][a-z0-9_.]*$`)

// Set takes a setting as the command line writes it. Whether there is such a one, PostgreSQL says
// at its start.
func (s settings) Set(word string) error {
	name, value, ok := strings.Cut(word, "=")
	name = strings.ToLower(name)
	if !ok || !settingName.MatchString(name) {
		return fmt.Errorf("write name=value, for example shared_buffers=1GB")
	}
	if _, twice := s[name]; twice {
		return fmt.Errorf("%s comes twice: give it once", name)
	}
	s[name] = value
	return nil
}

// String is what a usage message shows.
func (s settings) String() string { return strings.Join(s.words(), " ") }

// words are the settings as they were given, in the order of their names.
func (s settings) words() []string {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(s)) {
		words = append(words, name+"="+s[name])
	}
	return words
}
