package documents_test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// step is a command of a page with the output that the page shows.
type step struct {
	// line is the step's line in the page.
	line int
	// terminal is the number of the terminal in which the command runs in the background, 0 in the
	// foreground. A background step without a command waits for more output of the command
	// that runs there.
	terminal int
	command  string
	shown    []string
	// fails: the command must end with a status other than 0.
	fails bool
	// interrupts: the step ends the command of its terminal, as Ctrl-C does.
	interrupts bool
	// file is the name of a file that gets the shown lines; the step has no command.
	file string
}

// startsInstance reports whether the first command of a page starts an instance in a terminal.
func startsInstance(steps []step) bool {
	for _, s := range steps {
		if s.command != "" {
			return s.terminal > 0 && (strings.HasPrefix(s.command, "postern dev") || s.command == "playground")
		}
	}
	return false
}

var (
	fence        = regexp.MustCompile("^( *)```(.*)$")
	terminalInfo = regexp.MustCompile(`\bterminal=(\d+)`)
	fileInfo     = regexp.MustCompile(`\bfile=(\S+)`)
)

// parsePage returns the steps of a page: those of its fenced blocks of the language console, and
// each block of another language whose first line has file=NAME.
func parsePage(text string) (steps []step) {
	inside, indent, isConsole, isFirst := false, "", false, false
	var block step // what all steps of the block have
	for i, line := range strings.Split(text, "\n") {
		if m := fence.FindStringSubmatch(line); m != nil {
			if inside = !inside; inside {
				block, indent = step{}, m[1]
				language, _, _ := strings.Cut(m[2], " ")
				isConsole, isFirst = language == "console", true
				if n := terminalInfo.FindStringSubmatch(m[2]); n != nil {
					block.terminal, _ = strconv.Atoi(n[1]) // these are digits
				}
				if name := fileInfo.FindStringSubmatch(m[2]); name != nil && !isConsole {
					steps = append(steps, step{line: i + 1, file: name[1]})
					block.file = name[1]
				}
			}
			continue
		}
		line = strings.TrimPrefix(line, indent)
		switch {
		case inside && isConsole:
			block.line = i + 1
			steps, isFirst = addConsoleLine(steps, block, line, isFirst), false
		case inside && block.file != "":
			steps[len(steps)-1].shown = append(steps[len(steps)-1].shown, line)
		}
	}
	return steps
}

// addConsoleLine adds a line of a console block, perhaps its first, to the steps. It may be the
// start of a step, or belong to the last one.
func addConsoleLine(steps []step, block step, line string, isFirst bool) []step {
	last := &step{}
	if len(steps) > 0 {
		last = &steps[len(steps)-1]
	}
	command, isCommand := strings.CutPrefix(line, "$ ")
	more, isMore := strings.CutPrefix(line, "> ")
	switch {
	case isCommand:
		block.command, block.fails = strings.CutSuffix(command, "  # fails")
		return append(steps, block)
	case isMore && len(last.shown) == 0, strings.HasSuffix(last.command, `\`) && len(last.shown) == 0:
		if !isMore {
			more = line
		}
		last.command += "\n" + more
	case line == "^C" && block.terminal > 0:
		block.interrupts = true
		return append(steps, block)
	case isFirst:
		block.shown = []string{line}
		return append(steps, block)
	default:
		last.shown = append(last.shown, line)
	}
	return steps
}

func TestParsePage_blocks_becomeSteps(t *testing.T) {
	t.Parallel()
	page := strings.ReplaceAll(`# Title

'''console terminal=1
$ postern dev
Postern is ready.
...
'''

1. Indented:

   '''console
   $ postern send stripe invoice.paid --tamper  # fails
   rejected
   $ cat > a <<EOF
   > x
   > EOF
   $ echo a \
       b
   '''

'''sh
$ not run
'''

'''yaml file=postern.yaml
sources:
  a: b
'''

'''console terminal=1
more
^C
'''
`, "'''", "```")
	want := []step{
		{line: 4, terminal: 1, command: "postern dev", shown: []string{"Postern is ready.", "..."}},
		{line: 12, command: "postern send stripe invoice.paid --tamper", fails: true, shown: []string{"rejected"}},
		{line: 14, command: "cat > a <<EOF\nx\nEOF"},
		{line: 17, command: "echo a \\\n    b"},
		{line: 25, file: "postern.yaml", shown: []string{"sources:", "  a: b"}},
		{line: 31, terminal: 1, shown: []string{"more"}},
		{line: 32, terminal: 1, interrupts: true},
	}
	if diff := cmp.Diff(want, parsePage(page), cmp.AllowUnexported(step{})); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
}
