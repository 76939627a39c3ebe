package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/testkit/golden"
)

const commandsHead = `<!-- Generated from the commands themselves: go test ./cmd/postern -run TestReference -update. ` +
	`Do not edit. -->

# Commands

For everybody who types ` + "`postern`" + `. This page has the text of ` + "`--help`" + ` of each command. The
[exit codes](exit-codes.md) have a page of their own. The subcommand ` + "`completion bash`" + ` (or zsh,
fish, powershell) prints a script that completes commands, flags and names in your shell.

`

// TestReference_commands_isCurrent writes docs/reference/commands.md.
func TestReference_commands_isCurrent(t *testing.T) {
	t.Parallel()
	root := newRootCommand()
	var b strings.Builder
	b.WriteString(commandsHead + "| command | task |\n|---|---|\n")
	all := availableCommands(root)
	for _, cmd := range all {
		if isGroup(cmd) {
			continue
		}
		fmt.Fprintf(&b, "| [`%s`](#%s) | %s |\n", cmd.CommandPath(), strings.ReplaceAll(cmd.CommandPath(), " ", "-"),
			markdown(cmd.Short))
	}
	rootText, _ := splitLong(root)
	fmt.Fprintf(&b, "\n## All commands\n\n%s\n\nFlags of every command:\n\n", markdown(rootText))
	writeFlags(&b, root.PersistentFlags())
	for _, cmd := range all {
		writeCommand(&b, cmd)
	}
	b.WriteString("\n## gateway and processor\n\nThe daemons have only these flags. Their settings are in the " +
		"[configuration](configuration.md).\n")
	for _, daemon := range []struct {
		name    string
		options app.Options
	}{
		{"gateway", app.Options{Gateway: true, AdminListen: config.DefaultAdminListen}},
		{"processor", app.Options{Processor: true, AdminListen: config.DefaultProcessorListen}},
	} {
		var help strings.Builder
		app.Daemon(daemon.name, daemon.options, []string{"--help"}, &help)
		fmt.Fprintf(&b, "\n```text\n%s```\n", help.String())
	}
	golden.Page(t, "../../docs/reference/commands.md", b.String())
}

// availableCommands returns all commands below one, each before its subcommands.
func availableCommands(of *cobra.Command) (all []*cobra.Command) {
	for _, cmd := range of.Commands() {
		if cmd.IsAvailableCommand() {
			all = append(append(all, cmd), availableCommands(cmd)...)
		}
	}
	return all
}

// writeCommand writes the section of a command.
func writeCommand(b *strings.Builder, cmd *cobra.Command) {
	level := "##"
	if cmd.Parent().HasParent() {
		level = "###"
	}
	fmt.Fprintf(b, "\n%s %s\n\n%s.\n", level, cmd.CommandPath(), markdown(cmd.Short))
	if isGroup(cmd) {
		return
	}
	fmt.Fprintf(b, "\n```text\n%s\n```\n", strings.TrimSuffix(cmd.UseLine(), " [flags]"))
	text, page := splitLong(cmd)
	if text != "" {
		fmt.Fprintf(b, "\n%s\n", markdown(text))
	}
	if cmd.LocalNonPersistentFlags().HasAvailableFlags() {
		b.WriteByte('\n')
		writeFlags(b, cmd.LocalNonPersistentFlags())
	}
	if cmd.Example != "" {
		fmt.Fprintf(b, "\n```sh\n%s\n```\n", strings.ReplaceAll("\n"+cmd.Example, "\n  ", "\n")[1:])
	}
	if page != "" {
		fmt.Fprintf(b, "\nMore: %s\n", page)
	}
}

// splitLong returns a command's description, "" if it only repeats the summary, and a link to the
// page that its help names.
func splitLong(cmd *cobra.Command) (text, page string) {
	text, address, _ := strings.Cut(cmd.Long, "\n\nMore: ")
	if text == cmd.Short+"." {
		text = ""
	}
	if _, path, ok := strings.Cut(address, "/docs/"); ok {
		name := strings.TrimSuffix(path[strings.LastIndex(path, "/")+1:], ".md")
		page = fmt.Sprintf("[%s](../%s).", strings.ReplaceAll(name, "-", " "), path)
	}
	return text, page
}

// isGroup returns true for a command that only has subcommands.
func isGroup(cmd *cobra.Command) bool {
	return cmd.HasSubCommands() && fmt.Sprintf("%p", cmd.RunE) == fmt.Sprintf("%p", showHelpOrError)
}

func writeFlags(b *strings.Builder, flags *pflag.FlagSet) {
	b.WriteString("| flag | meaning |\n|---|---|\n")
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		name, help := pflag.UnquoteUsage(f)
		flag := "--" + f.Name
		if f.Shorthand != "" {
			flag = "-" + f.Shorthand + ", " + flag
		}
		if name != "" {
			flag += " " + name
		}
		value := ""
		if !slices.Contains([]string{"", "false", "[]", "0", "0s"}, f.DefValue) {
			value = " (default `" + f.DefValue + "`)"
		}
		fmt.Fprintf(b, "| `%s` | %s%s |\n", flag, strings.ReplaceAll(markdown(help), "|", `\|`), value)
	})
}

var namedFlag = regexp.MustCompile(`(?m)(^|[ (])(--[a-z][a-z-]*)`)

// lineEnd matches a line end within a paragraph.
var lineEnd = regexp.MustCompile(`([^\n])\n([^\n ])`)

// markdown makes Markdown of a help text, with one line for each paragraph.
func markdown(help string) string {
	help = lineEnd.ReplaceAllString(help, "$1 $2")
	return namedFlag.ReplaceAllString(strings.NewReplacer("<", "&lt;", "*", `\*`).Replace(help), "$1`$2`")
}

// exitStatuses describes each exit status.
var exitStatuses = []struct {
	status  int
	meaning string
}{
	{statusDone, "The command did what it was asked for, or an operator answered its question with no."},
	{statusFailed, "The command failed or was interrupted. Some commands also return it for a bad result; see below."},
	{statusUsage, "An argument, a flag or the value of one is wrong."},
	{statusNotFound, "The named event, object, run or other thing does not exist."},
	{statusAmbiguous, "Several events or objects match the name. The error lists them; name one exactly."},
}

const exitCodesHead = `<!-- Generated from the commands themselves: go test ./cmd/postern -run TestReference -update. ` +
	`Do not edit. -->

# Exit codes

For everybody who calls the programs from scripts, units and containers: what each code means.

## postern

`

// TestReference_exitCodes_isCurrent writes docs/reference/exit-codes.md.
func TestReference_exitCodes_isCurrent(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString(exitCodesHead + "| code | meaning |\n|---|---|\n")
	for _, s := range exitStatuses {
		fmt.Fprintf(&b, "| %d | %s |\n", s.status, s.meaning)
	}
	b.WriteString("\nAn error is one line on standard error, which begins with `postern:`. A second SIGINT or SIGTERM ends " +
		"a\ncommand at once; the shell then reports 130 or 143. These commands say more about their codes:\n\n")
	for _, cmd := range availableCommands(newRootCommand()) {
		for _, sentence := range exitSentences(cmd) {
			fmt.Fprintf(&b, "- [`%s`](commands.md#%s): %s\n", cmd.CommandPath(),
				strings.ReplaceAll(cmd.CommandPath(), " ", "-"), markdown(sentence))
		}
	}
	b.WriteString("\n## gateway and processor\n\n| code | meaning |\n|---|---|\n")
	for _, s := range app.ExitStatuses {
		fmt.Fprintf(&b, "| %d | %s |\n", s.Status, s.Meaning)
	}
	golden.Page(t, "../../docs/reference/exit-codes.md", b.String())
}

// exitSentences returns what the help of a command says about its exit status.
func exitSentences(cmd *cobra.Command) (all []string) {
	long, _ := splitLong(cmd)
	text := strings.ReplaceAll(strings.ReplaceAll(long, "\n\n", ". "), "\n", " ")
	for sentence := range strings.SplitSeq(text, ". ") {
		if strings.Contains(sentence, "exit status") {
			all = append(all, strings.TrimSuffix(sentence, ".")+".")
		}
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if strings.Contains(f.Usage, "exit status") {
			all = append(all, "--"+f.Name+": "+f.Usage+".")
		}
	})
	return all
}
