package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/versioning"
)

func newObjectsCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "objects", Short: "List, inspect and announce mirrored objects", RunE: showHelpOrError,
		Args: cobra.ArbitraryArgs}
	cmd.AddCommand(objectList.newCommand(c), newObjectsShowCommand(c), newObjectsAnnounceCommand(c),
		newObjectsOverwriteCommand(c))
	return cmd
}

var objectList = listCommand[versioning.View]{
	subject: "objects, by source, account, type and id",
	example: `  postern objects list --source stripe --type subscription
  postern objects list --ambiguous
  postern objects list --type order --since 1h -o json`,
	params: admin.ObjectParams,
	query:  admin.Objects,
	columns: []column[versioning.View]{
		{"SOURCE", func(o versioning.View) string { return o.Source }},
		{"ACCOUNT", func(o versioning.View) string { return o.Account }},
		{"TYPE", func(o versioning.View) string { return o.ObjectType }},
		{"ID", func(o versioning.View) string { return o.ObjectID }},
		{"REVISION", func(o versioning.View) string { return strconv.FormatInt(o.Revision, 10) }},
		{"FLAGS", describeFlags},
		{"UPDATED", func(o versioning.View) string { return o.UpdatedAt.String() }},
		{"LAST EVENT", func(o versioning.View) string { return strconv.FormatInt(o.LastEventID, 10) }},
	},
	emptyText: "No objects.",
	notes:     stagedRebuilds,
}

// describeFlags lists the states that a reader must know before trusting the object.
func describeFlags(o versioning.View) string {
	text := ""
	for _, f := range []struct {
		set  bool
		name string
	}{{o.Deleted, "deleted"}, {o.Ambiguous, "ambiguous"}, {!o.RefetchAfter.IsZero(), "refetch pending"},
		{o.Sanitized, "sanitized"},
		{o.Redacted, "redacted"}} {
		if f.set && text != "" {
			text += ", "
		}
		if f.set {
			text += f.name
		}
	}
	return text
}

func newObjectsShowCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show SOURCE TYPE ID",
		Short: "Show an object: its state, version, flags and last event",
		Example: `  postern objects show stripe subscription sub_1Postern0Team0001
  postern objects show shop order 820982911946154508 --account demo.myshopify.com
  postern objects show stripe invoice in_1Postern0Jan0001 -o json | jq .state.status`,
		Args: wantArgs("SOURCE", "TYPE", "ID"),
	}
	params := []admin.Param{{Name: "account", Help: "tenant, if several have the object"}}
	filterFlags(cmd, params)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
			view, err := admin.Object(cmd.Context(), pool, args[0], args[1], args[2], filterValues(cmd, params))
			switch {
			case err != nil:
				return err
			case c.output == "json":
				return printJSON(cmd.OutOrStdout(), view)
			}
			return printObject(cmd.Context(), cmd.OutOrStdout(), pool, view)
		})
	}
	return cmd
}

func printObject(ctx context.Context, out io.Writer, pool *pgxpool.Pool, o *versioning.View) error {
	last, outcome, err := describeLastEvent(ctx, pool, o.LastEventID)
	if err != nil {
		return err
	}
	err = printFields(out, "object", describeObject(o.ObjectType, o.ObjectID), "source", o.Source, "account", o.Account,
		"version", o.Version.String()+versionKind(o.Version), "revision", fmt.Sprintf("%d, changed %s", o.Revision,
			o.UpdatedAt), "deleted", yesOrNo(o.Deleted, "yes: deleted at the provider; the last known state is below"),
		"ambiguous", yesOrNo(o.Ambiguous, "yes: different contents of exactly the same version; a fixed rule chose "+
			"the one below"), "refetch pending", yesOrNo(!o.RefetchAfter.IsZero(), "yes: from "+o.RefetchAfter.String()+
			" on, in the provider's time; the state may be incomplete until then; see postern refetches list"),
		"overwritten", yesOrNo(!o.OverwrittenAt.IsZero(), "everything received before "+o.OverwrittenAt.String()+
			" is ignored: an operator overwrote the object from the provider"), "sanitized", yesOrNo(o.Sanitized,
			"yes: PostgreSQL's JSON cannot hold the body unchanged; postern events show --raw prints the original"),
		"redacted", yesOrNo(o.Redacted, "yes: the state was cleared for good; a newer event or refetch sets it again"),
		"last event", last, "outcome", outcome)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "\nState\n%s\n", indentJSON(o.State))
	return err
}

// versionKind says what the version is. A value that is not a plausible time in microseconds is the
// object's own version number.
func versionKind(v versioning.Version) string {
	const oldest, newest = 1e14, 4e15 // the years 1973 and 2096
	switch {
	case v == versioning.NoVersion:
		return ""
	case v.At < oldest || v.At > newest:
		return " (the object's own number)"
	}
	return " (the provider's time)"
}

func yesOrNo(set bool, text string) string {
	if set {
		return text
	}
	return "no"
}

// describeLastEvent describes the event of the object's version and its outcome.
func describeLastEvent(ctx context.Context, pool *pgxpool.Pool, id int64) (event, outcome string, err error) {
	detail, err := events.Show(ctx, pool, strconv.FormatInt(id, 10), 0)
	if errors.Is(err, events.ErrNotFound) {
		return fmt.Sprintf("%d, no longer in the log", id), "", nil
	}
	if err != nil {
		return "", "", err
	}
	if len(detail.Outcomes) > 0 {
		outcome = detail.Outcomes[0].Status + ": " + detail.Outcomes[0].Reason
	}
	event = fmt.Sprintf("%d, %s, %s, received %s", detail.ID, detail.EventID, detail.EventType, detail.ReceivedAt)
	return event, outcome, nil
}

// describeVersion formats a stored version.
func describeVersion(b json.RawMessage) string {
	var v *versioning.Version
	if len(b) == 0 || json.Unmarshal(b, &v) != nil || v == nil {
		return ""
	}
	return v.String()
}

func newObjectsAnnounceCommand(c *cli) *cobra.Command {
	var source, objectType, reason string
	var yes bool
	cmd := &cobra.Command{
		Use:   "announce",
		Short: "Publish objects of the mirror to the feed of changes again",
		Long: `Publish every object of the mirror to postern.changes again, with its current revision.
Use it for a new consumer, or after the stream has lost changes that are too old to be published
again. Consumers that keep the highest revision of each object are not affected. The running
processors publish within about a second. The command asks first.`,
		Example: `  postern objects announce
  postern objects announce --source stripe --type subscription --yes`,
		Args: wantArgs(),
	}
	addReasonFlag(cmd, &reason)
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation")
	cmd.Flags().StringVar(&source, "source", "", "only objects of this `source`")
	cmd.Flags().StringVar(&objectType, "type", "", "only objects of this `type`")
	cmd.Flags().StringVar(&objectType, "object-type", "",
		"the same as --type, with the name used for events and outcomes")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
			if ok, err := confirmWithUser(cmd, announceQuestion(source, objectType), yes); err != nil || !ok {
				return err
			}
			n, err := admin.Announce(cmd.Context(), pool, source, objectType, operatorWithReason(reason))
			if err != nil {
				return err
			}
			if c.output == "json" {
				return printJSON(cmd.OutOrStdout(), map[string]int{"objects": n})
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s will be announced.\n", countOf(n, "object"))
			return err
		})
	}
	return cmd
}

// announceQuestion names the objects that the command publishes again.
func announceQuestion(source, objectType string) string {
	chosen := "every object of the mirror"
	if source != "" || objectType != "" {
		chosen = "every object"
	}
	if objectType != "" {
		chosen += " of type " + escapeControl(objectType)
	}
	if source != "" {
		chosen += " of source " + escapeControl(source)
	}
	return "Publish " + chosen + " to the feed of changes again?"
}
