package console

import "context"

// helpPage explains the keys and the words, and names the pages of the documentation.
func helpPage(_ context.Context, r *request) (*view, error) {
	v := &view{Title: "Help", Text: "The keys and words of this console, and where the documentation has more."}
	keys := &table{Columns: []string{"Key", "Effect"}, Rows: [][]cell{
		{code("/"), text("go to the search for an id")},
		{code("l"), text("follow new events, or stop")}, {code("[ ]"), text("event before, event after")},
		{code("j"), text("next row of a list")},
		{code("k"), text("previous row of a list")}, {code("Enter"), text("open the row")},
		{code("n"), text("next page of a list")}, {code("Escape"), text("close a form or a menu")},
		{code("?"), text("this page")}}}
	for _, g := range navigation {
		for _, item := range g.Items {
			if item.Key != "" {
				keys.Rows = append(keys.Rows, []cell{code("g " + item.Key), link(item.Label, Prefix+item.Href)})
			}
		}
	}
	words := &table{Columns: []string{"Word", "Meaning"}}
	for _, w := range helpWords {
		words.Rows = append(words.Rows, []cell{text(w[0]), text(w[1])})
	}
	docs := &table{Columns: []string{"Page", "What it is about"}}
	for _, d := range helpDocuments {
		docs.Rows = append(docs.Rows, []cell{code(d[0]), text(d[1])})
	}
	v.Blocks = []block{{ID: "keys", Heading: "Keys", Text: "Keys need script, and every page works without it. The " +
		"menu at your name turns keys off.",
		Table: keys}, {ID: "words", Heading: "Words", Table: words}, {ID: "documentation", Heading: "Documentation",
		Text: "These pages are in the source code, and at " + repository + ".", Table: docs}}
	return v, nil
}

// repository has the source code with the pages of the documentation.
const repository = "https://github.com/postern-gateway/postern"

// helpWords are the words that an operator needs first. docs/reference/glossary.md has all.
var helpWords = [][2]string{
	{"source", "a configured endpoint of one provider, with its secrets"},
	{"event", "one entry of the log; it is appended and never changed, except by a redaction"},
	{"outcome", "the result of applying an event: applied, unchanged, stale, ambiguous, ignored, failed or dead"},
	{"stale", "the event's version is older than that of the object, so it changes nothing"},
	{"dead", "all attempts failed; an operator decides"},
	{"rejection", "a delivery that could not be verified; it can be reprocessed"},
	{"conflict", "a delivery with the key of a stored event and different content"},
	{"object", "a thing of the provider that events are about"},
	{"mirror", "the table of objects, each in its newest known state"},
	{"ambiguous", "two states of exactly the same version: it is not known which one is current"},
	{"refetch", "read one object again from the provider's API"},
	{"run", "one execution of a job: a replay, a retry, a rebuild, a reconciliation, a redaction"},
	{"replay", "apply stored events again"},
	{"rebuild", "make all objects of a source again from the log, alongside the live ones"},
	{"swap", "make the staged objects of a rebuild the live ones"},
	{"reconcile", "read the provider's API and add to the log what webhooks did not bring"},
	{"orphan", "a mirrored object that the provider does not have"},
	{"complete until", "the log has every event of the provider up to this time"},
	{"effect", "a request or mail that a rule sends once for a change"},
	{"unknown outcome", "a step may have been executed: the response was lost"},
	{"spool", "deliveries on a gateway's disk, from a time without a database"},
	{"republish", "publish again each stored event that has no outcome"},
}

// helpDocuments are the pages of the documentation for operators.
var helpDocuments = [][2]string{
	{"docs/how-to/find-why-an-event-had-no-effect.md", "an event is stored, and nothing changed"},
	{"docs/how-to/find-why-a-delivery-was-rejected.md", "a provider's deliveries are rejected"},
	{"docs/how-to/find-why-nothing-is-applied.md", "events stay without an outcome"},
	{"docs/how-to/replay-stored-events.md", "apply events again, with or without effects"},
	{"docs/how-to/rebuild-after-a-rule-change.md", "make all objects again, compare, swap"},
	{"docs/how-to/reconcile-and-repair.md", "find and repair what webhooks did not bring"},
	{"docs/how-to/run-jobs-on-a-schedule.md", "start jobs at planned times"},
	{"docs/how-to/approve-and-undo-effects.md", "approve, reject, resolve and undo effects"},
	{"docs/how-to/rotate-a-secret.md", "replace a signing secret without a gap"},
	{"docs/how-to/keep-or-drop-data.md", "maximum ages of data"},
	{"docs/how-to/erase-a-customer.md", "remove the data of a person"},
	{"docs/how-to/recover-from-an-outage.md", "after the database or NATS was unavailable"},
	{"docs/how-to/control-access.md", "tokens, roles and the audit"},
	{"docs/reference/glossary.md", "all words"},
	{"docs/reference/api.md", "the JSON API, which this console uses too"},
	{"docs/reference/commands.md", "all commands"},
}
