package main

import (
	"encoding/json"
	"testing"

	"github.com/postern-gateway/postern/internal/redaction"
)

// A person sees which spools there are and who waits for them, and is told what may be lost with one that is forgotten.
func TestSpools(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.run(t, "spool", "list").want(t, 0, "No spools: no gateway that has one runs", "")
	b.db.Exec(t, `INSERT INTO spools (spool, place, known_at, empty_at, told_at, deliveries, bytes, oldest_at) VALUES
		('full', 'there:/spool', '2026-01-01Z', '2026-01-02Z', '2026-01-03Z', 3, 100, '2026-01-02T12:00Z'), ('here', 'here:/spool', now(), now(), now(), 0, 0, null), ('dark', 'there:/spool', now(), '-infinity', null, null, null, null)`)
	b.append(t, "stripe", "evt_1", `{"id":"evt_1"}`)
	b.run(t, "redact", "--event", "evt_1", "--yes", "--no-wait", "--reason", "why").want(t, 0, "", "")
	r := b.run(t, "spool", "list")
	r.want(t, 0, "OLDEST                       LAST EMPTY                   WAITED FOR BY RUNS\n", "")
	r.want(t, 0, "full   there:/spool  2026-01-01T00:00:00.000000Z  2026-01-03T00:00:00.000000Z  3           100    2026-01-02T12:00:00.000000Z  2026-01-02T00:00:00.000000Z  1\n", "")
	b.run(t, "spool", "forget", "full").want(t, 2, "", "say why with --reason")
	b.run(t, "spool", "forget", "full", "--reason", "why").want(t, 2, "", "give --yes")
	b.run(t, "spool", "forget", "nobody", "--reason", "why", "--yes").want(t, 3, "", "knows of none with this name")
	b.run(t, "spool", "forget", "here", "--reason", "why", "--yes").want(t, 2, "", "or give --force")
	b.run(t, "spool", "forget", "full", "--reason", "why", "--yes").want(t, 0, "Spool full is forgotten: no redaction waits for it. "+
		"It was last told of at 2026-01-03T00:00:00.000000Z, to hold 3 deliveries (100 bytes). These, and what the gateway acknowledged without the database after that, are lost with its disk where they are not in the log.\n", "")
	b.run(t, "spool", "forget", "dark", "--reason", "why", "--yes").want(t, 2, "", "nothing says whether its gateway runs")
	b.run(t, "spool", "forget", "dark", "--reason", "why", "--yes", "--force").want(t, 0, "Nobody knows what is in it", "")
	var s redaction.Spool
	if r := b.run(t, "spool", "forget", "here", "--reason", "why", "--yes", "--force", "-o", "json"); json.Unmarshal([]byte(r.out), &s) != nil || s.Name != "here" || *s.Deliveries != 0 {
		t.Errorf("%+v", r)
	}
}
