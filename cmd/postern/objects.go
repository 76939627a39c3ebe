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
	cmd := &cobra.Command{Use: "objects", Short: "What is so: the mirror of the provider's objects", RunE: group, Args: cobra.ArbitraryArgs}
	cmd.AddCommand(objectLister.command(c), newObjectsShowCommand(c), newObjectsAnnounceCommand(c), newObjectsSettleCommand(c))
	return cmd
}

var objectLister = lister[versioning.View]{
	what: "objects, by source, account, type and id",
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
		{"FLAGS", flags},
		{"UPDATED", func(o versioning.View) string { return o.UpdatedAt.String() }},
		{"LAST EVENT", func(o versioning.View) string { return strconv.FormatInt(o.LastEventID, 10) }},
	},
	none:  "No objects.",
	notes: stagedRebuilds,
}

// flags are what a reader must know before trusting the state.
func flags(o versioning.View) string {
	text := ""
	for _, f := range []struct {
		set  bool
		name string
	}{{o.Deleted, "deleted"}, {o.Ambiguous, "ambiguous"}, {!o.LookAfter.IsZero(), "refetch pending"}, {o.Repaired, "repaired"},
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
	params := []admin.Param{{Name: "account", Help: "tenant, where several have the object"}}
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
	last, outcome, err := lastEvent(ctx, pool, o.LastEventID)
	if err != nil {
		return err
	}
	err = facts(out,
		"object", object(o.ObjectType, o.ObjectID),
		"source", o.Source,
		"account", o.Account,
		"version", o.Version.String()+versionKind(o.Version),
		"revision", fmt.Sprintf("%d, changed %s", o.Revision, o.UpdatedAt),
		"deleted", noUnless(o.Deleted, "yes: the provider said so; what it carried is kept below"),
		"ambiguous", noUnless(o.Ambiguous, "yes: differing states of one version whose order nothing tells; a fixed rule chose the one below"),
		"refetch pending", noUnless(!o.LookAfter.IsZero(), "yes: to begin after "+o.LookAfter.String()+
			" on the provider's clock; the state may be incomplete until then; see postern hints list"),
		"settled", noUnless(!o.Settled.IsZero(), "what was received before "+o.Settled.String()+" does not count: a person had a look of then win"),
		"repaired", noUnless(o.Repaired, "yes: the state differs from the body where PostgreSQL's JSON cannot hold it; events show --raw has the truth"),
		"redacted", noUnless(o.Redacted, "yes: the state was cleared for good; a newer event or refetch fills it again"),
		"last event", last,
		"outcome", outcome)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "\nState\n%s\n", pretty(o.State))
	return err
}

// versionKind says what a version counts: what is no time in microseconds of this age is the object's own number.
func versionKind(v versioning.Version) string {
	const oldest, newest = 1e14, 4e15 // the years 1973 and 2096
	switch {
	case v == versioning.NoVersion:
		return ""
	case v.At < oldest || v.At > newest:
		return " (the object's own number)"
	}
	return " (the provider's clock)"
}

func noUnless(set bool, text string) string {
	if set {
		return text
	}
	return "no"
}

// lastEvent describes the event that the object's version is from, and what became of it.
func lastEvent(ctx context.Context, pool *pgxpool.Pool, id int64) (event, outcome string, err error) {
	life, err := events.Show(ctx, pool, strconv.FormatInt(id, 10), 0)
	if errors.Is(err, events.ErrNotFound) {
		return fmt.Sprintf("%d, no longer in the log", id), "", nil
	}
	if err != nil {
		return "", "", err
	}
	if len(life.Outcomes) > 0 {
		outcome = life.Outcomes[0].Status + ": " + life.Outcomes[0].Reason
	}
	return fmt.Sprintf("%d, %s, %s, received %s", life.ID, life.EventID, life.EventType, life.ReceivedAt), outcome, nil
}

// versionWords is a stored version for a person.
func versionWords(b json.RawMessage) string {
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
		Short: "Send the objects of the mirror to the feed of changes again",
		Long: `Send every object of the mirror to postern.changes again, with its present revision: for a consumer that starts anew, or after
the stream lost more than the outbox keeps. Consumers that keep the highest revision are not disturbed. The running processors
do the sending, within about a second. The command asks first.`,
		Example: `  postern objects announce
  postern objects announce --source stripe --type subscription --yes`,
		Args: wantArgs(),
	}
	reasonFlag(cmd, &reason)
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	cmd.Flags().StringVar(&source, "source", "", "only objects of this `source`")
	cmd.Flags().StringVar(&objectType, "type", "", "only objects of this `type`")
	cmd.Flags().StringVar(&objectType, "object-type", "", "the same as --type, named as in the lists of events and outcomes")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
			if ok, err := confirm(cmd, announceQuestion(source, objectType), yes); err != nil || !ok {
				return err
			}
			n, err := admin.Announce(cmd.Context(), pool, source, objectType, because(reason))
			if err != nil {
				return err
			}
			if c.output == "json" {
				return printJSON(cmd.OutOrStdout(), map[string]int{"objects": n})
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s will be announced.\n", counted(n, "object"))
			return err
		})
	}
	return cmd
}

// announceQuestion names the objects that the command sends again.
func announceQuestion(source, objectType string) string {
	chosen := "every object of the mirror"
	if source != "" || objectType != "" {
		chosen = "every object"
	}
	if objectType != "" {
		chosen += " of type " + plain(objectType)
	}
	if source != "" {
		chosen += " of source " + plain(source)
	}
	return "Send " + chosen + " to the feed of changes again?"
}
