package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// typed are the command lines that a page has: in lines of their own, and within `...`.
var typed = regexp.MustCompile("(?m)^    (?:\\$ )?postern ([a-z].*)$|`postern ([a-z][^`]*)`")

// What pages say to type there is: the commands, and their flags.
func TestCommandsOfThePages(t *testing.T) {
	t.Parallel()
	for _, page := range []string{"README.md", "docs/operations.md", "docs/reconciliation.md", "docs/migrating.md", "docs/effects.md", "docs/checklists.md", "SECURITY.md"} {
		text, err := os.ReadFile("../../" + page)
		if err != nil {
			t.Fatal(err)
		}
		lines := typed.FindAllStringSubmatch(string(text), -1)
		if len(lines) == 0 {
			t.Errorf("%s names no command", page)
		}
		for _, line := range lines {
			words := strings.Fields(line[1] + line[2])
			cmd, rest, err := newRoot().Find(words)
			if err != nil || !cmd.HasParent() || cmd.HasSubCommands() && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
				t.Errorf("%s: %s: there is no such command: %v", page, words, err)
				continue
			}
			for _, word := range words {
				name, flag := strings.CutPrefix(strings.TrimRight(word, ",;.)"), "--")
				if name, _, _ = strings.Cut(name, "="); word == "#" || strings.HasPrefix(word, "|") {
					break
				}
				if flag && name != "" && cmd.Flag(name) == nil && cmd.InheritedFlags().Lookup(name) == nil && name != "help" {
					t.Errorf("%s: %s: %s has no flag %s", page, words, cmd.CommandPath(), name)
				}
			}
		}
	}
}
