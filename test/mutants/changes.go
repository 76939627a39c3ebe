package main

// changeMutants break how changes get their numbers, and how readers follow them.
func changeMutants() []mutant {
	const group = "changes"
	one := func(name, tests, old, replacement string) mutant {
		return mutant{group, name, []edit{{old, replacement}}, []string{"internal/changes " + tests}}
	}
	return []mutant{
		one("lets two processes number changes at once", "Number_concurrent",
			"server_identity() FROM change_feed f FOR UPDATE", "server_identity() FROM change_feed f"),
		one("forgets rows that the sender has locked", "Number_rowThatTheSender",
			"UPDATE outbox o SET numbered = true WHERE o.batch = ANY (ARRAY(SELECT t.batch FROM taken t))",
			"UPDATE outbox o SET numbered = true WHERE NOT o.numbered AND o.batch <= "+
				"(SELECT max(t.batch) FROM taken t) OR o.batch = ANY (ARRAY(SELECT t.batch FROM taken t))"),
		one("keeps the number of an object's first change", "Read_filtersAndPages",
			"DO UPDATE SET number = excluded.number, changed_at = excluded.changed_at",
			"DO UPDATE SET changed_at = excluded.changed_at"),
		one("lets the times of changes go back", "Number_rowsWithEarlierTimes",
			"greatest(max(m.created_at) OVER (ORDER BY m.batch), "+
				"(SELECT x.changed_at FROM changes x WHERE x.number = $1))", "m.created_at"),
		one("compares only the times of one pass", "Number_rowsWithEarlierTimes",
			"greatest(max(m.created_at) OVER (ORDER BY m.batch), "+
				"(SELECT x.changed_at FROM changes x WHERE x.number = $1))",
			"max(m.created_at) OVER (ORDER BY m.batch)"),
		one("does not report a redacted object", "ReadPage_specialObjects",
			"AND o.tied_states = '[]' AS redacted,", "AND false AS redacted,"),
		one("accepts a cursor ahead of the newest number", "Check_afterRestore",
			"limit := f.Newest\nfor i := len(f.epochs) - 1;", "limit := f.Newest + 1<<62\nfor i := len(f.epochs) - 1;"),
		one("accepts a cursor of an earlier epoch without limit", "Check_afterRestore",
			"limit = min(limit, f.starts[i])", "limit = min(limit, f.Newest)"),
		one("continues after changes that it has not compared with the filter", "Read_filtersAndPages",
			"case len(page) == limit:\nreturn page, page[limit-1].Number, nil",
			"case len(page) == limit:\nreturn page, max(after, upTo), nil"),
	}
}
