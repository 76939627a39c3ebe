package main

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// usualArgs let a command come as far as the database.
var usualArgs = map[string]string{"SOURCE": "stripe", "TYPE": "customer", "ID": "1", "RUN": "1", "NAME": "stripe",
	"PROVIDER": "stripe", "EVENT": "evt_1", "FILE": "/none/none"}

// mayTake ends a command that took the value and waits for a processor.
const mayTake = 10 * time.Second

// TestCommands_invalidUTF8_isExplained walks all commands, their arguments and flags.
func TestCommands_invalidUTF8_isExplained(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, "stripe", "evt_1", `{}`)
	tried := 0
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
		// These go on until they are interrupted, or write a file.
		if cmd.HasSubCommands() || slices.Contains([]string{"dev", "serve", "tail", "top", "init"}, cmd.Name()) {
			return
		}
		for _, line := range hostileLines(cmd) {
			tried++
			ctx, cancel := context.WithTimeout(t.Context(), mayTake)
			r := execute(ctx, "", append([]string{"--dir", b.dir}, line...)...)
			if strings.Contains(r.errs, "SQLSTATE") || ctx.Err() != nil {
				t.Errorf("%q: %d %s", line, r.status, r.errs)
			}
			cancel()
		}
	}
	walk(newRoot())
	if tried < 200 {
		t.Errorf("%d command lines: are all commands walked?", tried)
	}
}

// hostileLines are the command lines of a command with one argument or flag that is not UTF-8. The
// name of a file may be so.
func hostileLines(cmd *cobra.Command) (lines [][]string) {
	line := strings.Fields(cmd.CommandPath())[1:]
	first := len(line)
	for _, word := range strings.Fields(cmd.Use)[1:] {
		if strings.HasPrefix(word, "-") {
			break
		}
		line = append(line, usualArgs[strings.Trim(word, "[].")])
	}
	for i := first; i < len(line); i++ {
		if line[i] == usualArgs["FILE"] {
			continue
		}
		bad := slices.Clone(line)
		bad[i] = "\xff"
		lines = append(lines, bad)
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Value.Type() == "string" {
			lines = append(lines, append(slices.Clone(line), "--"+f.Name, "\xff"))
		}
	})
	return lines
}
