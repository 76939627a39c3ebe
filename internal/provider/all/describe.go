package all

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/postern-gateway/postern/internal/provider"
)

// Docs returns a provider's description of itself.
func Docs(p provider.Provider) provider.Docs {
	d, ok := p.(provider.Documented)
	if !ok {
		return provider.Docs{Title: p.Name()}
	}
	docs := d.Docs()
	docs.Title = cmp.Or(docs.Title, p.Name())
	return docs
}

// Describe returns a provider's section of docs/reference/providers.md.
func Describe(p provider.Provider) string {
	d := Docs(p)
	var b strings.Builder
	fmt.Fprintf(&b, "## %s\n\n`provider: %s`\n\n", d.Title, p.Name())
	section := func(title, text string) {
		if text != "" {
			fmt.Fprintf(&b, "**%s.** %s\n\n", title, text)
		}
	}
	section("Set up", d.Setup)
	section("Signature", d.Signature)
	section("Event key", d.Key)
	if strings.HasPrefix(d.Objects, "- ") {
		fmt.Fprintf(&b, "**Objects.**\n\n%s\n\n", d.Objects)
	} else {
		section("Objects", d.Objects)
	}
	if len(d.Unconfirmed) > 0 {
		fmt.Fprintf(&b, "**Not confirmed.** We have read no document of the sender that confirms the following:\n\n")
		for _, u := range d.Unconfirmed {
			fmt.Fprintf(&b, "- %s\n", u)
		}
		b.WriteByte('\n')
	}
	if headers := p.Headers(); len(headers) > 0 {
		section("Headers stored with an event", "`"+strings.Join(headers, "`, `")+"`")
	}
	if types := sampleTypes(p); len(types) > 0 {
		section("Samples", "`postern send "+p.Name()+" TYPE` with one of these types: `"+
			strings.Join(types, "`, `")+"`")
	}
	for _, link := range d.Links {
		fmt.Fprintf(&b, "<%s>\n", link)
	}
	return strings.TrimRight(b.String(), "\n") + "\n"
}

func sampleTypes(p provider.Provider) []string {
	var types []string
	for _, s := range p.Samples() {
		types = append(types, s.Type)
	}
	return types
}

// Page returns the text of docs/reference/providers.md.
func Page() string {
	var b strings.Builder
	b.WriteString(`<!-- Generated from the providers themselves: ` +
		`go test ./internal/provider/all -update. Do not edit. -->

# Providers

This page is for everyone who connects a sender to Postern. For each ` + "`provider:`" + ` of a source, it says
how to set it up, how deliveries are verified, which value is an event's key, and which objects are
mirrored. ` + "`postern providers show NAME`" + ` prints one of these sections.

Use [` + "`provider: hmac`" + `](configuration.md) for any other sender that signs with an HMAC, a public
key or a token. [Add a provider](../how-to/add-a-provider.md) explains how to add one to Postern.

| provider | sender |
|---|---|
`)
	for _, p := range All() {
		title := Docs(p).Title
		fmt.Fprintf(&b, "| [`%s`](#%s) | %s |\n", p.Name(), anchor(title), title)
	}
	for _, p := range All() {
		b.WriteString("\n" + Describe(p))
	}
	return b.String()
}

// anchor returns the anchor that Markdown renderers give to a heading.
func anchor(title string) string {
	keep := func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-', r == '_':
			return r
		}
		return -1
	}
	return strings.Map(keep, strings.ToLower(title))
}

// APIPage returns the text of docs/reference/provider-apis.md.
func APIPage() string {
	var b strings.Builder
	b.WriteString(`<!-- Generated from the providers themselves: ` +
		`go test ./internal/provider/all -update. Do not edit. -->

# Provider APIs

For operators who reconcile: what Postern reads of a provider's API, which rights the key needs, and
which limits apply. The key only reads. See [reconcile and repair](../how-to/reconcile-and-repair.md) for
the steps, and [reconciliation](../explanation/reconciliation.md) for the reasons. For any other sender,
[describe its API](../how-to/describe-another-api.md).

`)
	var documented []provider.Provider
	for _, p := range All() {
		if _, ok := p.(provider.APIDocumented); ok {
			documented = append(documented, p)
			fmt.Fprintf(&b, "- [%s](#%s)\n", Docs(p).Title, anchor(Docs(p).Title))
		}
	}
	for _, p := range documented {
		writeAPI(&b, p)
	}
	return b.String()
}

// writeAPI writes a provider's section.
func writeAPI(b *strings.Builder, p provider.Provider) {
	title, d := Docs(p).Title, p.(provider.APIDocumented).APIDocs()
	changed := slices.ContainsFunc(d.Types, func(t provider.ReadableType) bool { return t.Changed != "" })
	fmt.Fprintf(b, "\n## %s\n\n%s\n\n| type | all objects |%s one object |\n|---|---|%s---|\n", title, d.Paths,
		onlyIf(changed, " only changed objects |"), onlyIf(changed, "---|"))
	for _, t := range d.Types {
		fmt.Fprintf(b, "| `%s` | %s |%s %s |\n", t.Type, t.List, onlyIf(changed, " "+t.Changed+" |"), t.Object)
	}
	b.WriteString("\nThese types are mirrored and not read; their refetches stay pending:\n\n")
	byReason := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(d.NotRead)) {
		byReason[d.NotRead[name]] = append(byReason[d.NotRead[name]], name)
	}
	for _, reason := range slices.Sorted(maps.Keys(byReason)) {
		fmt.Fprintf(b, "- `%s`: %s.\n", strings.Join(byReason[reason], "`, `"), reason)
	}
	b.WriteString(strings.ReplaceAll("\n"+d.Text, "\n### ", "\n### "+title+": "))
	compared, ok := p.(interface{ IgnoredPaths() map[string][]string })
	if !ok {
		return
	}
	fmt.Fprintf(b, "\n### %s: Fields that are not compared\n\nThese fields differ in each response, or change "+
		"without a version. The mirror has those of the\nnewest event or refetch.\n\n", title)
	ignored := compared.IgnoredPaths()
	for _, name := range slices.Sorted(maps.Keys(ignored)) {
		if paths := slices.Sorted(slices.Values(ignored[name])); len(paths) > 0 {
			fmt.Fprintf(b, "- `%s`: `%s`\n", name, strings.Join(slices.Compact(paths), "`, `"))
		}
	}
}

func onlyIf(condition bool, text string) string {
	if condition {
		return text
	}
	return ""
}
