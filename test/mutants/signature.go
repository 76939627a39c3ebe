package main

// signatureMutants break the verification of deliveries.
func signatureMutants() []mutant {
	const group = "signature"
	in := func(tests, name string, edits ...edit) mutant { return mutant{group, name, edits, []string{tests}} }
	one := func(name, old, replacement string) mutant {
		return in("internal/signature", name, edit{old, replacement})
	}
	return []mutant{
		one("accepts a signature of any age", "return m, fresh(m.SignedAt, r.ReceivedAt, s.tolerance(tolerance))",
			"return m, nil"),
		one("accepts a signature whose time is far in the future",
			"age, ahead := received.Sub(signed), signed.Sub(received)",
			"age, ahead := received.Sub(signed), time.Duration(0)"),
		one("ignores the tolerance that is configured for a source",
			"case given != 0:\nreturn given\ncase s.Timestamp.Tolerance != 0:", "case s.Timestamp.Tolerance != 0:"),
		one("allows a scheme whose signature does not cover its time", "case s.Timestamp.Tolerance < 0:\n"+
			"c.Fail(\"tolerance\", \"is negative\")\ncase !s.covers(from, Timestamp):",
			"case s.Timestamp.Tolerance < 0:\nc.Fail(\"tolerance\", \"is negative\")\ncase false:"),
		one("tries only the first secret of a source", "for i, secret := range secrets {\nk := v.r.Keys.of(s, secret)",
			"for i, secret := range secrets[:min(1, len(secrets))] {\nk := v.r.Keys.of(s, secret)"),
		one("uses the first secret that it read instead of any other one",
			"return newKeyed(s, secret)\n}\nk.mu.RLock()",
			"return newKeyed(s, secret)\n}\nfor of, first := range k.entries {\nif of.scheme == s {\nreturn "+
				"first\n}\n}\nk.mu.RLock()"),
		one("accepts a prefix of the correct signature", "return subtle.ConstantTimeCompare(a, b)\n}",
			"return subtle.ConstantTimeCompare(a, b[:min(len(a), len(b))])\n}"),
		one("accepts a signature under the key of an older scheme", "s.Signature.Item == \"\" || key == "+
			"s.Signature.Item, nil",
			"s.Signature.Item == \"\" || strings.HasPrefix(key, s.Signature.Item[:1]), nil"),
		one("accepts a body that was changed after its digest was signed",
			"if err := s.checkBody(v); err != nil {\nreturn Match{}, err\n}\n", ""),
		one("accepts a request with two signature headers",
			"values := v.r.Header[ref.Name]\nif len(values) != 1 {", "values := v.r.Header[ref.Name]\nif len(values) "+
				"== 0 {"),
		one("accepts a secret that contains no key",
			"if k.shared, err = s.Key.of(secret); err == nil && len(k.shared) == 0 "+
				"{", "if k.shared, err = s.Key.of(secret); err == nil && len(secret) == 0 {"),
		one("uses a public key as a shared secret", "if isKeyPair(secret) {\nreturn nil, errors.New(",
			"if isKeyPair(secret) && k.RequirePrefix {\nreturn nil, errors.New("),
		in("internal/provider VerifySchemes_deliveries_chooseMostSpecificRejection",
			"records another secret than the one that verified a delivery",
			edit{"Secret: src.Secrets[m.Secret].Name", "Secret: src.Secrets[0].Name"}),
		in("internal/app Reload_rotatedSecret_acceptsBothUntilRemoved",
			"accepts a signature with a secret that was removed from the configuration",
			edit{"s.metrics.preset(endpoints)\ns.endpoints.Store(&endpoints)\n",
				"s.metrics.preset(endpoints)\nfor name, ep := range endpoints {\nif old, known := before[name]; " +
					"known {\nep.Config.Secrets = append(ep.Config.Secrets, " +
					"old.Config.Secrets...)\n}\n}\ns.endpoints.Store(&endpoints)\n"}),
	}
}
