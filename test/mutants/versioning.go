package main

// versioningMutants break the rule that decides which of two states of an object is the later one.
func versioningMutants() []mutant {
	const group = "version rule"
	tests := []string{"internal/versioning"}
	one := func(name, old, replacement string) mutant {
		return mutant{group, name, []edit{{old, replacement}}, tests}
	}
	in := func(pkg string, m mutant) mutant {
		m.tests = []string{pkg}
		return m
	}
	return []mutant{
		one("treats a state of the same time as newer", "c := in.Version.Compare(row.Version)\n",
			"c := in.Version.Compare(row.Version)\nif c == 0 {\nc = 1\n}\n"),
		one("applies every event, even an older one", "c := in.Version.Compare(row.Version)\n",
			"c := in.Version.Compare(row.Version)\nif c < 0 {\nc = 1\n}\n"),
		one("lets an event be newer than a final delete", "if v.Final {\nreturn 1\n}\nreturn -1",
			"if v.Final {\nreturn -1\n}\nreturn 1"),
		one("ignores the start time of a refetch", "cmp.Or(cmp.Compare(v.At, w.At), cmp.Compare(v.Seen, w.Seen), "+
			"cmp.Compare(v.Rank, w.Rank))",
			"cmp.Or(cmp.Compare(v.At, w.At), cmp.Compare(v.Rank, w.Rank))"),
		one("ignores the rank of event types", "cmp.Or(cmp.Compare(v.At, w.At), cmp.Compare(v.Seen, w.Seen), "+
			"cmp.Compare(v.Rank, w.Rank))",
			"cmp.Or(cmp.Compare(v.At, w.At), cmp.Compare(v.Seen, w.Seen))"),
		one("keeps the tied states of the previous version",
			"row.Version, row.TiedStates, row.Overflow = in.Version, nil, false",
			"row.Version, row.Overflow = in.Version, false"),
		one("lets an earlier refetch clear a pending one", "case c >= 0 && in.TimeFrom > row.RefetchAfter:",
			"case c >= 0 && in.TimeTo >= row.RefetchAfter:"),
		one("requests no refetch when states of one version differ", "case doubt || c >= 0 && row.Ambiguous:",
			"case doubt:"),
		one("requests no refetch when a refetch and an event overlap",
			"return c < 0 && in.TimeTo >= row.TimeFrom || c > 0 && row.TimeTo >= in.TimeFrom",
			"return c < 0 && in.TimeTo > row.TimeTo || c > 0 && row.TimeFrom > in.TimeFrom && false"),
		one("requests no refetch after a partial event", "row.raiseLook(in.TimeTo)\nreturn row.decide(Ambiguous, "+
			"\"partial: \"", "return row.decide(Ambiguous, \"partial: \""),
		one("restores an object after a final delete", "return row.decide(Dead, ReasonFoundAlive)",
			"row.Version = NoVersion"),
		one("lets late events win after an operator's overwrite", "if c >= 0 && in.earliest() < row.OverwriteSeen {",
			"if c >= 0 && in.earliest() < 0 {"),
		one("does not detect a provider that returns an older version",
			"return c < 0 && in.Version.At < row.Version.At && row.TimeTo < "+
				"in.TimeFrom", "return c < 0 && in.Version.At > row.Version.At && row.TimeTo < in.TimeFrom"),
		in("internal/config", one("orders two times within one second although one of them is rounded to seconds",
			"return upper.At > lower.At && upper.At < lower.At+second && !in.Look && !row.HasLook()",
			"return upper.At > lower.At && upper.At < lower.At && !in.Look && !row.HasLook()")),
		one("treats a fork of change-sets as one chain", "if other, seen := next[from]; seen && other != to {\nreturn "+
			"nil, false\n}\n", ""),
		one("shows the last received one of several tied states", "end, ok := chain(set)\nif !ok {\nend = "+
			"greatestOpen(set)\n}", "end, ok := chain(set)\nif !ok {\nend = set[len(set)-1].State.Hash\n}"),
		one("applies events received before an operator's overwrite",
			"if in.Received < row.OverwrittenAt {", "if in.Received < 0 {"),
		in("internal/apply Save|Apply", one("overwrites a row that another process has written meanwhile",
			"AND excluded.created_at = o.updated_at\n", "\n")),
		in("internal/apply "+
			"Apply_ambiguityEnds_keepsLateEventRequest|Apply_refetch_endsAmbiguity|Metrics_ambiguities_equalTheMirror",
			one("counts no revision when an object becomes ambiguous",
				"OR o.ambiguous <> excluded.ambiguous\n", "\n")),
		one("loses tied states beyond the first", "case len(row.TiedStates) < maxTiedStates:",
			"case len(row.TiedStates) < 1:"),
	}
}
