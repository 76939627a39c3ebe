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
		one("takes what has the same time as newer", "c := in.Version.Compare(row.Version)\n",
			"c := in.Version.Compare(row.Version)\nif c == 0 {\nc = 1\n}\n"),
		one("applies whatever comes last", "c := in.Version.Compare(row.Version)\n",
			"c := in.Version.Compare(row.Version)\nif c < 0 {\nc = 1\n}\n"),
		one("lets an event be newer than a final delete", "if v.Final {\nreturn 1\n}\nreturn -1",
			"if v.Final {\nreturn -1\n}\nreturn 1"),
		one("ignores when a refetch began", "cmp.Or(cmp.Compare(v.At, w.At), cmp.Compare(v.Seen, w.Seen), "+
			"cmp.Compare(v.Rank, w.Rank))",
			"cmp.Or(cmp.Compare(v.At, w.At), cmp.Compare(v.Rank, w.Rank))"),
		one("ignores the rank of kinds of events", "cmp.Or(cmp.Compare(v.At, w.At), cmp.Compare(v.Seen, w.Seen), "+
			"cmp.Compare(v.Rank, w.Rank))",
			"cmp.Or(cmp.Compare(v.At, w.At), cmp.Compare(v.Seen, w.Seen))"),
		one("keeps the states of the version before", "row.Version, row.TiedStates, row.Overflow = in.Version, nil, "+
			"false",
			"row.Version, row.Overflow = in.Version, false"),
		one("clears a pending refetch by what began before it", "case c >= 0 && in.TimeFrom > row.RefetchAfter:",
			"case c >= 0 && in.TimeTo >= row.RefetchAfter:"),
		one("asks for no refetch where states of one version differ", "case doubt || c >= 0 && row.Ambiguous:",
			"case doubt:"),
		one("asks for no refetch where a refetch and an event overlap",
			"return c < 0 && in.TimeTo >= row.TimeFrom || c > 0 && row.TimeTo >= in.TimeFrom",
			"return c < 0 && in.TimeTo > row.TimeTo || c > 0 && row.TimeFrom > in.TimeFrom && false"),
		one("takes a partial event for a state that is settled", "row.raiseLook(in.TimeTo)\nreturn "+
			"row.decide(Ambiguous, "+
			"\"partial: \"", "return row.decide(Ambiguous, \"partial: \""),
		one("brings back what was deleted for good", "return row.decide(Dead, ReasonFoundAlive)",
			"row.Version = NoVersion"),
		one("lets late events win after an operator's overwrite", "if c >= 0 && in.earliest() < row.OverwriteSeen {",
			"if c >= 0 && in.earliest() < 0 {"),
		one("does not notice a provider that goes back", "return c < 0 && in.Version.At < row.Version.At && "+
			"row.TimeTo < "+
			"in.TimeFrom", "return c < 0 && in.Version.At > row.Version.At && row.TimeTo < in.TimeFrom"),
		in("internal/config", one("decides within a second that an event names whole",
			"return upper.At > lower.At && upper.At < lower.At+second && !in.Look && !row.HasLook()",
			"return upper.At > lower.At && upper.At < lower.At && !in.Look && !row.HasLook()")),
		one("takes a fork of change-sets for one walk", "if other, seen := next[from]; seen && other != to {\nreturn "+
			"nil, false\n}\n", ""),
		one("shows the state that came last of one version", "end, ok := chain(set)\nif !ok {\nend = "+
			"greatestOpen(set)\n}", "end, ok := chain(set)\nif !ok {\nend = set[len(set)-1].State.Hash\n}"),
		one("forgets who has settled the object", "if in.Received < row.Settled {", "if in.Received < 0 {"),
		in("internal/processor Save|Apply", one("writes a row that another process has written meanwhile",
			"AND excluded.created_at = o.updated_at\n", "\n")),
		in("internal/processor "+
			"Apply_ambiguityEnds_keepsLateEventRequest|Apply_refetch_endsAmbiguity|Metrics_ambiguities_equalTheMirror",
			one("counts no revision for a change that is doubtful",
				"OR o.ambiguous <> excluded.ambiguous\n", "\n")),
		one("loses members of a version beyond one", "case len(row.TiedStates) < maxTiedStates:",
			"case len(row.TiedStates) < 1:"),
	}
}
