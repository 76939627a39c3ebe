package main

import "github.com/spf13/cobra"

// documents is the folder of the documents, as it is published.
const documents = "https://github.com/postern-gateway/postern/blob/main/docs/"

// pages are the documents that explain a command and its subcommands, below docs/.
var pages = map[string]string{
	"audit":      "how-to/control-access.md",
	"config":     "reference/configuration.md",
	"conflicts":  "how-to/find-why-an-event-had-no-effect.md",
	"dev":        "tutorial/1-first-webhook.md",
	"doctor":     "how-to/check-stored-data.md",
	"drift":      "how-to/reconcile-and-repair.md",
	"effects":    "how-to/approve-and-undo-effects.md",
	"events":     "how-to/find-why-an-event-had-no-effect.md",
	"export":     "how-to/export-and-import.md",
	"feed":       "how-to/choose-a-feed.md",
	"find":       "how-to/find-why-an-event-had-no-effect.md",
	"health":     "how-to/monitor.md",
	"import":     "how-to/export-and-import.md",
	"init":       "how-to/install.md",
	"migrate":    "how-to/upgrade.md",
	"notify":     "how-to/monitor.md",
	"objects":    "tutorial/2-mirror-in-your-app.md",
	"outcomes":   "how-to/find-why-an-event-had-no-effect.md",
	"providers":  "how-to/add-another-sender.md",
	"rebuild":    "how-to/rebuild-after-a-rule-change.md",
	"reconcile":  "how-to/reconcile-and-repair.md",
	"redact":     "how-to/erase-a-customer.md",
	"refetches":  "explanation/reconciliation.md",
	"rejections": "how-to/find-why-a-delivery-was-rejected.md",
	"replay":     "how-to/replay-stored-events.md",
	"retention":  "how-to/keep-or-drop-data.md",
	"retry":      "how-to/find-why-an-event-had-no-effect.md",
	"runs":       "how-to/replay-stored-events.md",
	"schedules":  "how-to/run-jobs-on-a-schedule.md",
	"send":       "tutorial/1-first-webhook.md",
	"serve":      "how-to/install.md",
	"spool":      "how-to/recover-from-an-outage.md",
	"stream":     "how-to/recover-from-an-outage.md",
	"token":      "how-to/control-access.md",
	"top":        "how-to/monitor.md",
	"verify":     "how-to/check-stored-data.md",
	"views":      "how-to/read-typed-tables.md",
}

// namePages ends the help of each command with the page that explains it.
func namePages(root *cobra.Command) {
	name(root, "README.md")
	for _, cmd := range root.Commands() {
		if page := pages[cmd.Name()]; page != "" {
			name(cmd, page)
			for _, sub := range cmd.Commands() {
				name(sub, page)
			}
		}
	}
}

func name(cmd *cobra.Command, page string) {
	if cmd.Long == "" {
		cmd.Long = cmd.Short + "."
	}
	cmd.Long += "\n\nMore: " + documents + page
}
