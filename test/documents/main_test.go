// Package documents_test checks the documents: it runs the commands of tutorials and how-tos and
// compares their output, and it checks links, lengths and the way to each page.
//
// The commands of a page are the lines "$ COMMAND" of its fenced blocks of the language console.
// Lines "> MORE" continue a command. The other lines are its output, on both streams:
//
//   - Times, durations, ports, event ids and Postern's ids may differ. Equal ids must stay equal,
//     and later commands get the ids that were printed.
//   - "..." stands for any lines, and at the end of a line for any words.
//   - A command must end with status 0, or otherwise if its line ends in "  # fails".
//   - A command that only reads is repeated until its output is as shown, at most for 5 minutes.
//   - A block with terminal=N runs its command in the background until the lines appeared. A
//     further block of that terminal waits for more lines. The line "^C" interrupts the command.
//   - A block of another language with file=NAME is written to that file.
//
// Each page runs in an empty folder. Instances get free ports, and the addresses 127.0.0.1:8080 and
// 127.0.0.1:8081 in commands become theirs.
package documents_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/testkit"
)

const root = "../.."

func TestMain(m *testing.M) { testkit.Main(m) }

// programs returns the folder of the programs that the pages name.
func programs(t *testing.T) string {
	t.Helper()
	dir, err := testkit.Programs("cmd/postern", "test/playground", "examples/consume-go", "examples/sink")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// maxWalks is how many pages run at the same time: each starts its own PostgreSQL.
const maxWalks = 2

// The commands of each page print what the page shows.
func TestPages_commands_printWhatIsShown(t *testing.T) {
	t.Parallel()
	bin, slots := programs(t), make(chan struct{}, maxWalks)
	for _, name := range walkedPages(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			slots <- struct{}{}
			defer func() { <-slots }()
			w := newWalker(t, bin)
			// Instances find an existing cluster; those of the playground make their own.
			if err := testkit.PrepareCluster(t.Context(), w.clusterDir(t, ".postern")); err != nil {
				t.Fatal(err)
			}
			if err := w.walk(parsePage(read(t, name))); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if name == "docs/tutorial/3-survive-a-bad-day.md" {
				w.checkKilled(t)
				w.checkPlayground(t)
			}
		})
	}
}

// walkedPages returns the pages whose commands are run: the tutorials, the README, and the how-tos
// that begin with an instance.
func walkedPages(t *testing.T) (names []string) {
	t.Helper()
	for _, name := range pages(t) {
		steps := parsePage(read(t, name))
		switch {
		case len(steps) == 0:
		case name == "README.md", strings.HasPrefix(name, "docs/tutorial/"),
			strings.HasPrefix(name, "docs/how-to/") && startsInstance(steps):
			names = append(names, name)
		}
	}
	return names
}

// pages returns all Markdown pages of the repository, relative to its root.
func pages(t *testing.T) (names []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && path != root && (strings.HasPrefix(name, ".") ||
			slices.Contains([]string{"testdata", "node_modules", "bin", "site"}, name)) {
			return filepath.SkipDir
		}
		if filepath.Ext(name) == ".md" {
			relative, err := filepath.Rel(root, path)
			names = append(names, filepath.ToSlash(relative))
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// read returns the text of a file of the repository.
func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
