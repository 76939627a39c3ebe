package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/user"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/operations"
)

// command describes a command; build makes it.
type command struct {
	// use is the name, the arguments and the required flags. VALUE is required, [VALUE] is
	// optional, and VALUE... may be given several times.
	use, short, long, example string
	// ids is set if the arguments are numeric ids: the command that lists them.
	ids string
	// params are flags whose given values are call.values; parse reads them.
	params []operations.Param
	flags  []flag
	// moreFlags adds flags of other types.
	moreFlags func(*cobra.Command)
	complete  cobra.CompletionFunc
	// check returns an error for wrong usage, before the command connects to the database.
	check func(*call) error
	// offline commands do not get a connection to the database.
	offline bool
	run     func(*call) error
}

// flag is a flag without a value, or a text.
type flag struct {
	name, help string
	isText     bool
}

// The flags that several commands have.
var (
	yesFlag    = flag{"yes", "do not ask for confirmation", false}
	noWaitFlag = flag{"no-wait", "do not watch: print the run and exit", false}
	rawFlag    = flag{"raw", "print the exact bytes of the body and nothing else; a terminal shows control " +
		"characters as escape sequences", false}
	reasonFlag = flag{"reason", "the reason; kept in the audit trail", true}
)

// call is one execution of a command.
type call struct {
	*cli
	cmd       *cobra.Command
	ctx       context.Context
	in        io.Reader
	out, errs io.Writer
	args      []string
	// ids are the arguments of a command whose arguments are ids.
	ids    []int64
	values map[string]string
	// pool is the connection as operator; nil if the command is offline.
	pool *pgxpool.Pool
}

func (s command) build(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: s.use, Short: s.short, Long: s.long, Example: s.example, ValidArgsFunction: s.complete,
		Args: checkArgs(s.use)}
	filterFlags(cmd, s.params)
	for _, f := range s.flags {
		switch {
		case f.isText:
			cmd.Flags().String(f.name, "", f.help)
		case f.name == yesFlag.name:
			cmd.Flags().BoolP(f.name, "y", false, f.help)
		default:
			cmd.Flags().Bool(f.name, false, f.help)
		}
	}
	if s.moreFlags != nil {
		s.moreFlags(cmd)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		x := &call{cli: c, cmd: cmd, ctx: cmd.Context(), in: cmd.InOrStdin(), out: cmd.OutOrStdout(),
			errs: cmd.ErrOrStderr(), args: args, values: filterValues(cmd, s.params)}
		if s.ids != "" {
			if x.ids, err = parseIDs(args, s.ids); err != nil {
				return err
			}
		}
		if s.check != nil {
			if err := s.check(x); err != nil {
				return err
			}
		}
		if !s.offline {
			if x.pool, err = c.connect(x.ctx, x.errs); err != nil {
				return err
			}
			defer x.pool.Close()
		}
		return s.run(x)
	}
	return cmd
}

// completeFlag completes the values of a flag.
func completeFlag(cmd *cobra.Command, name string, values ...string) {
	must(cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)))
}

// group returns a command that only has subcommands.
func group(name, short string, sub ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: name, Short: short, RunE: showHelpOrError, Args: cobra.ArbitraryArgs}
	cmd.AddCommand(sub...)
	return cmd
}

// checkArgs requires the arguments in a command's use. All arguments except file names must be
// valid UTF-8, because they become parameters of queries.
func checkArgs(use string) cobra.PositionalArgs {
	var names []string
	for _, name := range strings.Fields(use)[1:] {
		if strings.HasPrefix(name, "--") { // a required flag and its value
			break
		}
		names = append(names, name)
	}
	return func(cmd *cobra.Command, args []string) error {
		least, most := 0, len(names)
		for _, name := range names {
			if name[0] != '[' {
				least++
			}
			if strings.Contains(name, "...") {
				most = len(args)
			}
		}
		if len(args) < least || len(args) > max(least, most) {
			wanted := "no arguments"
			if len(names) > 0 {
				wanted = strings.Join(names, " ")
			}
			return usagef("%s takes %s, got %s; see %s --help", cmd.CommandPath(), wanted,
				countOf(len(args), "argument"), cmd.CommandPath())
		}
		for i, arg := range args {
			name := names[min(i, len(names)-1)]
			if !strings.Contains(name, "FILE") && !utf8.ValidString(arg) {
				return usagef("%s %q is not valid UTF-8", name, arg)
			}
		}
		return nil
	}
}

// parseIDs reads numeric ids. The error names list, the command that shows the ids.
func parseIDs(texts []string, list string) (ids []int64, err error) {
	for _, text := range texts {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 1 {
			return nil, usagef("%q is not an id: %s shows them", text, list)
		}
		ids = append(ids, n)
	}
	return ids, nil
}

// has reports whether a flag without a value is given; false if the command has no such flag.
func (x *call) has(flag string) bool { return x.text(flag) == "true" }

// text returns the value of a flag; "" if the command has no such flag.
func (x *call) text(flag string) string {
	if f := x.cmd.Flags().Lookup(flag); f != nil {
		return f.Value.String()
	}
	return ""
}

func (x *call) json() bool { return x.output == "json" }

// show prints a result as JSON, or as text. It returns err if that is set.
func show[T any](x *call, v T, err error, text func(*call, T) error) error {
	switch {
	case err != nil:
		return err
	case x.json():
		return printJSON(x.out, v)
	}
	return text(x, v)
}

// printf prints a result as JSON, or as a line of text. It escapes the texts.
func (x *call) printf(v any, format string, args ...any) error {
	if x.json() {
		return printJSON(x.out, v)
	}
	_, err := fmt.Fprintln(x.out, escapeControl(fmt.Sprintf(format, args...)))
	return err
}

// confirm asks on the terminal, unless --yes is given. Without a terminal, the command needs --yes
// or a flag that only shows.
func (x *call) confirm(question string) (bool, error) {
	if x.has(yesFlag.name) {
		return true, nil
	}
	if f, ok := x.in.(*os.File); !ok || !term.IsTerminal(int(f.Fd())) {
		for _, flag := range []string{"preview", "dry-run"} {
			if x.cmd.Flags().Lookup(flag) != nil {
				return false, usagef("no terminal to ask for confirmation: add --yes, or --%s to change nothing", flag)
			}
		}
		return false, usagef("no terminal to ask for confirmation: add --yes")
	}
	fmt.Fprint(x.errs, question+" [y/N] ")
	answer, err := bufio.NewReader(x.in).ReadString('\n')
	if err != nil {
		return false, err
	}
	answer = strings.ToLower(strings.TrimSpace(answer))
	return answer == "y" || answer == "yes", nil
}

// requireReason returns an error without --reason. purpose says what the reason is for; "" if the
// help says it.
func (x *call) requireReason(purpose string) error {
	if strings.TrimSpace(x.text("reason")) == "" {
		return usagef("give a reason with --reason%s", purpose)
	}
	return nil
}

// reason returns the value of --reason.
func (x *call) reason() string { return strings.TrimSpace(x.text("reason")) }

// parse returns the parameters of an operation that the flags give.
func parse[P any](x *call) (p P, err error) {
	err = operations.Parse(&p, x.values)
	return p, err
}

// operator returns the user of this command according to the operating system.
func operator() operations.Requester {
	name, host := "unknown", "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	return operations.Requester{Actor: adminauth.Actor{Name: name + "@" + host, Via: adminauth.ViaCommand}}
}
