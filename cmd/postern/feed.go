package main

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/changes"
	"github.com/postern-gateway/postern/internal/operations"
)

func newFeedCommand(c *cli) *cobra.Command {
	return group("feed", "List and set the cursors that Postern keeps for readers of changes",
		listCommand[changes.NamedCursor, operations.Page]{
			subject: "feed cursors: how far readers have processed the changes, and how far they are behind",
			example: "  postern feed list",
			query:   operations.ListPages(changes.Cursors),
			columns: []column[changes.NamedCursor]{
				{"NAME", func(c changes.NamedCursor) any { return c.Name }},
				{"CURSOR", func(c changes.NamedCursor) any { return c.Cursor }},
				{"STATE", func(c changes.NamedCursor) any { return describeCursor(&c) }},
				{"CHANGES BEHIND", func(c changes.NamedCursor) any { return c.LagChanges }},
				{"SECONDS BEHIND", func(c changes.NamedCursor) any { return int64(c.LagSeconds) }},
				{"LAST REPORT", func(c changes.NamedCursor) any { return c.MovedAt }},
				{"BY", func(c changes.NamedCursor) any { return c.MovedBy }},
			},
			emptyText: "No feed cursors: no reader of changes keeps its cursor here.",
		}.newCommand(c), newFeedSetCommand(c), newFeedRemoveCommand(c), newFeedEpochCommand(c))
}

// describeCursor says in a word how a reader does.
func describeCursor(c *changes.NamedCursor) string {
	switch {
	case c.Ended:
		return "ended"
	case c.Stalled:
		return "stalled"
	case c.LagChanges > 0:
		return "behind"
	}
	return "current"
}

func newFeedSetCommand(c *cli) *cobra.Command {
	return command{
		use: "set NAME", short: "Set a feed cursor, as its reader does with PUT /api/v1/feed-cursors/NAME",
		long: `Set a feed cursor, as its reader does with PUT /api/v1/feed-cursors/NAME. A cursor that does not
exist is created, at the beginning if --after is absent. A reader that continues after the stored
cursor reads what comes after it, so set it only while the reader is stopped.
The cursor then belongs to the next token that reports, for example a new token of the reader.`,
		example: `  postern feed set shop --after latest --stalls-after 15m
  postern feed set shop --after '' --rewind   # reads everything again`,
		params: slices.DeleteFunc(operations.Params(operations.FeedCursorParams{}), func(p operations.Param) bool {
			return p.Name == "name"
		}),
		run: func(x *call) error {
			p, err := parse[operations.FeedCursorParams](x)
			if err != nil {
				return err
			}
			p.Name = x.args[0]
			set, err := operations.SetFeedCursor(x.ctx, x.pool, p, operator())
			if err != nil {
				return err
			}
			return x.printf(set, "Feed cursor %s is at %s; at most %d changes come after it.", set.Name, set.Cursor,
				set.LagChanges)
		},
	}.build(c)
}

func newFeedRemoveCommand(c *cli) *cobra.Command {
	return command{
		use: "remove NAME", short: "Remove a feed cursor, so that it causes no alerts",
		example: "  postern feed remove shop --reason 'the shop reads over NATS now'",
		flags:   []flag{reasonFlag},
		run: func(x *call) error {
			removed, err := operations.RemoveFeedCursor(x.ctx, x.pool, operations.FeedCursorName{Name: x.args[0],
				Reason: x.reason()}, operator())
			if err != nil {
				return err
			}
			return x.printf(removed, "Feed cursor %s is removed. It was at %s.", removed.Name, removed.Cursor)
		},
	}.build(c)
}

func newFeedEpochCommand(c *cli) *cobra.Command {
	return command{
		use: "new-epoch --reason TEXT", short: "Make all readers of changes start again, after a restore of a snapshot",
		long: `Make all readers of changes by HTTP and SQL start again: no cursor that they have is valid any
more. Do so after you restored PostgreSQL from a snapshot of its disk, or a dump into the same
database without creating the database again. Postern detects other restores, and failovers, itself.`,
		example: "  postern feed new-epoch --reason 'disk of db-1 restored from the snapshot of 04:00'",
		flags:   []flag{reasonFlag, yesFlag},
		check: func(x *call) error {
			return x.requireReason(": all readers of changes start again, and the audit trail keeps why")
		},
		run: func(x *call) error {
			ok, err := x.confirm("All readers of changes by HTTP and SQL start again. Begin a new epoch?")
			if err != nil || !ok {
				return err
			}
			begun, err := operations.BeginFeedEpoch(x.ctx, x.pool, operations.ReasonParams{Reason: x.reason()},
				operator())
			if err != nil {
				return err
			}
			return x.printf(begun, "Epoch %s has begun.", begun.Epoch)
		},
	}.build(c)
}
