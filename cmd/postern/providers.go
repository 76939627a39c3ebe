package main

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/textproto"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/all"
)

func newProvidersCommand(c *cli) *cobra.Command {
	cmd := group("providers", "List and describe providers, and test a captured delivery",
		newProvidersListCommand(c), newProvidersShowCommand(c), newProviderTestCommand(c))
	cmd.Aliases = []string{"provider"}
	return cmd
}

// providerRow is a provider in the list.
type providerRow struct {
	Name    string   `json:"name"`
	Title   string   `json:"title"`
	Samples []string `json:"samples"`
	Docs    string   `json:"docs"`
	// Sources are the provider's sources in --config.
	Sources []providerSource `json:"sources,omitempty"`
}

// providerSource is a source of a provider.
type providerSource struct {
	Name       string `json:"name"`
	StoreToken bool   `json:"store_token"`
}

var providerColumns = []column[providerRow]{
	{"NAME", func(l providerRow) any { return l.Name }},
	{"SENDER", func(l providerRow) any { return l.Title }},
	{"SAMPLES", func(l providerRow) any { return len(l.Samples) }},
	{"DOCUMENTS", func(l providerRow) any { return l.Docs }},
}

var sourcesColumn = column[providerRow]{"SOURCES", func(l providerRow) any {
	var all []string
	for _, s := range l.Sources {
		if s.StoreToken {
			s.Name += " (stores the token)"
		}
		all = append(all, s.Name)
	}
	return strings.Join(all, ", ")
}}

// sourcesByProvider returns the sources of --config by the name of their provider, or nil without
// --config.
func (c *cli) sourcesByProvider() (map[string][]providerSource, error) {
	if c.config == "" {
		return nil, nil
	}
	cfg, err := config.LoadSources(c.config)
	if err != nil {
		return nil, err
	}
	found := map[string][]providerSource{}
	for _, name := range slices.Sorted(maps.Keys(cfg.Sources)) {
		s := cfg.Sources[name]
		found[s.Provider] = append(found[s.Provider], providerSource{name, s.StoreToken})
	}
	return found, nil
}

func newProvidersListCommand(c *cli) *cobra.Command {
	return command{
		use: "list", short: "List the providers with the names used in the configuration", offline: true,
		long: `List the providers with the names used in the configuration. With --config FILE the
list shows the sources of each provider, and marks those that store the sender's secret token in
clear text (store_token).`,
		example: `  postern providers list
  postern providers list --config postern.yaml`,
		run: listProviders,
	}.build(c)
}

func listProviders(x *call) error {
	sources, err := x.sourcesByProvider()
	if err != nil {
		return err
	}
	columns := providerColumns
	if sources != nil {
		columns = append(slices.Clone(columns), sourcesColumn)
	}
	var found []providerRow
	for _, p := range all.All() {
		d := all.Docs(p)
		one := providerRow{Name: p.Name(), Title: d.Title, Samples: sampleTypes(p), Sources: sources[p.Name()]}
		if len(d.Links) > 0 {
			one.Docs = d.Links[0]
		}
		found = append(found, one)
	}
	return printList(x, found, columns, "")
}

func newProvidersShowCommand(c *cli) *cobra.Command {
	return command{
		use: "show NAME", short: "Show how deliveries of a provider are verified and read", offline: true,
		long: `Describe a provider: where to find its secret, how a delivery is verified, where the
event id is, what is mirrored, what its documents do not confirm, and the samples of postern send.
docs/reference/providers.md has the same.`,
		example:  "  postern providers show slack",
		complete: completeProvider,
		run: func(x *call) error {
			p, err := findProvider(x.args[0])
			if err != nil {
				return err
			}
			if x.json() {
				return printJSON(x.out, struct {
					Name    string        `json:"name"`
					Docs    provider.Docs `json:"docs"`
					Headers []string      `json:"headers"`
					Samples []string      `json:"samples"`
				}{p.Name(), all.Docs(p), p.Headers(), sampleTypes(p)})
			}
			_, err = fmt.Fprint(x.out, all.Describe(p))
			return err
		},
	}.build(c)
}

func completeProvider(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return providerNames(), cobra.ShellCompDirectiveNoFileComp
}

func findProvider(name string) (provider.Provider, error) {
	p, ok := all.Named(name)
	if !ok {
		return nil, usagef("provider %q is not known: name one of %s", name, strings.Join(providerNames(), ", "))
	}
	return p, nil
}

func providerNames() []string {
	var names []string
	for _, p := range all.All() {
		names = append(names, p.Name())
	}
	return names
}

func sampleTypes(p provider.Provider) []string {
	var types []string
	for _, sample := range p.Samples() {
		types = append(types, sample.Type)
	}
	return types
}

func newProviderTestCommand(c *cli) *cobra.Command {
	var headers, secrets []string
	var tolerance time.Duration
	return command{
		use: "test FILE", short: "Explain step by step why the signature of a captured delivery is valid or not",
		offline: true,
		long: `Verify a captured delivery like a gateway and explain each step: where the signature
was searched, which bytes are signed, which secret matched. If none did, common mistakes are tried
and named. Then it shows what would be stored: the event's id, type and object. FILE contains the
exact bytes of the body (- is standard input). Nothing is sent or stored, and no secret or correct
signature is printed.

Name the provider with --provider and give the secret, or name a source of --config FILE with
--source to use its secrets and address. The age of a signed time is compared with --at; without
--at, the signed time is the time of receipt.`,
		example: `  postern provider test body.json --provider stripe --header "Stripe-Signature: t=...,v1=..." ` +
			`--secret-file whsec
  postern provider test body.form --provider twilio --header "X-Twilio-Signature: ..." ` +
			`--url https://hooks.example/webhooks/sms --secret "$TOKEN"
  postern provider test body.json --config postern.yaml --source acme --header "X-Acme-Signature: ..." ` +
			`--at 2026-01-02T15:04:05Z`,
		flags: []flag{{"provider", "`name` of the provider; see postern providers list", true},
			{"source", "`name` of a source of --config or of the dev instance, instead of --provider", true},
			{"secret-file", "`file` with the signing secret", true},
			{"url", "the webhook `address` at the sender, if the provider signs it", true},
			{"query", "the request's `query`, without the question mark", true},
			{"at", "`time` of receipt (RFC 3339, or now)", true}},
		moreFlags: func(cmd *cobra.Command) {
			f := cmd.Flags()
			f.StringArrayVar(&headers, "header", nil, "a `header` of the delivery, \"Name: value\"; repeat it for each")
			f.StringArrayVar(&secrets, "secret", nil, "signing `secret`; repeat it for several")
			f.String("method", http.MethodPost, "the request's `method`")
			f.DurationVar(&tolerance, "tolerance", 0,
				"maximum difference between the signed time and --at (default: the provider's)")
		},
		run: func(x *call) error {
			p, src, err := testedSource(x, secrets)
			if err != nil {
				return err
			}
			if tolerance != 0 {
				src.Tolerance = tolerance
			}
			if err := p.Check(src); err != nil {
				return usagef("%v", err)
			}
			return testDelivery(x, p, src, headers)
		},
	}.build(c)
}

// testedSource returns the provider and the source that the flags name.
func testedSource(x *call, secrets []string) (p provider.Provider, src *provider.Source, err error) {
	src = &provider.Source{Name: "test", Accounts: []string{"*"}}
	name, source := x.text("provider"), x.text("source")
	switch {
	case source != "" && name != "":
		return nil, nil, usagef("name --provider or --source, not both")
	case source != "":
		p, src, err = configuredSource(x, source)
	case name != "":
		p, err = findProvider(name)
	default:
		err = usagef("no sender given: use --provider NAME (see postern providers list), or --source NAME with " +
			"--config FILE")
	}
	if err != nil {
		return nil, nil, err
	}
	if file := x.text("secret-file"); file != "" {
		secret, err := readSecret(file)
		if err != nil {
			return nil, nil, err
		}
		secrets = append(slices.Clip(secrets), string(secret))
	}
	if len(secrets) > 0 {
		src.Secrets = nil
	}
	for i, value := range secrets {
		src.Secrets = append(src.Secrets, provider.Secret{Name: fmt.Sprintf("secret %d", i+1), Value: []byte(value)})
	}
	if len(src.Secrets) == 0 {
		return nil, nil, usagef("no secret: give the secret that signed this delivery with --secret or --secret-file")
	}
	if url := x.text("url"); url != "" {
		src.URL = url
	}
	return p, src, nil
}

// readSecret reads a file with a secret, without the end of its line.
func readSecret(file string) ([]byte, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read secret: %w", err)
	}
	return bytes.TrimRight(b, "\r\n"), nil
}

// configuredSource returns a source of --config, or a demo source of the dev instance.
func configuredSource(x *call, name string) (provider.Provider, *provider.Source, error) {
	endpoints := (&config.Config{Sources: config.DemoSources()}).Endpoints()
	if x.config != "" {
		cfg, err := config.LoadDev(x.config)
		if err != nil {
			return nil, nil, err
		}
		endpoints = cfg.Endpoints()
	}
	var names []string
	for _, e := range endpoints {
		if e.Source.Name == name {
			return e.Provider, e.Source, nil
		}
		names = append(names, e.Source.Name)
	}
	return nil, nil, usagef("there is no source %q; there are %s", name, orDash(strings.Join(names, ", ")))
}

// testDelivery explains the delivery in a file, and returns an error if a gateway would reject it.
func testDelivery(x *call, p provider.Provider, src *provider.Source, headers []string) error {
	body, err := readData(x.args[0], x.in)
	if err != nil {
		return fmt.Errorf("read delivery: %w", err)
	}
	d := &provider.Delivery{Method: x.text("method"), Query: x.text("query"), Body: body, ReceivedAt: time.Now()}
	if d.Header, err = parseHeaders(headers); err != nil {
		return err
	}
	at := x.text("at")
	if at != "" && at != "now" {
		if d.ReceivedAt, err = time.Parse(time.RFC3339, at); err != nil {
			return usagef("at %q: use a time like 2026-01-02T15:04:05Z", at)
		}
	}
	explanation, err := provider.ExplainDelivery(p, src, d, at == "")
	if err := show(x, explanation, err, printExplanation); err != nil {
		return err
	}
	if explanation.Rejected != "" {
		return fmt.Errorf("a gateway would reject this delivery: %s", explanation.Rejected)
	}
	return nil
}

func printExplanation(x *call, explanation *provider.Explanation) error {
	for _, s := range explanation.Steps {
		mark := "no"
		if s.OK {
			mark = "ok"
		}
		fmt.Fprintf(x.out, "%s  %-10s %s\n", mark, s.Name, escapeControl(s.Detail))
	}
	if explanation.Response != "" {
		_, err := fmt.Fprintln(x.out, escapeControl(explanation.Response))
		return err
	}
	for _, e := range explanation.Events {
		fmt.Fprintln(x.out)
		if err := printFields(x.out, "event id", e.Key, "type", e.Type, "account", e.Account, "object",
			describeObject(e.ObjectType, e.ObjectID), "occurred", e.OccurredAt, "change", e.Effect); err != nil {
			return err
		}
	}
	return nil
}

func readData(path string, in io.Reader) ([]byte, error) {
	if path == "-" {
		return io.ReadAll(in)
	}
	return os.ReadFile(path)
}

// parseHeaders reads the values of a flag --header.
func parseHeaders(texts []string) (http.Header, error) {
	header := http.Header{}
	for _, text := range texts {
		name, value, ok := strings.Cut(text, ":")
		if !ok || strings.TrimSpace(name) == "" {
			return nil, usagef("header %q: write \"Name: value\"", text)
		}
		header.Add(textproto.TrimString(name), textproto.TrimString(value))
	}
	return header, nil
}
