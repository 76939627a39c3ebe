package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/all"
	"github.com/postern-gateway/postern/internal/signature"
)

// captured is what `postern provider test` was asked for.
type captured struct {
	provider   string
	source     string
	headers    []string
	secrets    []string
	secretFile string
	url        string
	query      string
	method     string
	at         string
	tolerance  time.Duration
}

func newProviderTestCommand(c *cli) *cobra.Command {
	t := &captured{}
	cmd := &cobra.Command{
		Use:   "test FILE",
		Short: "Explain step by step why a captured delivery is proven or not",
		Long: `Verify a captured delivery as a gateway would and say of each step what was found: where the signature was looked for, which
bytes are signed, which secret matched. Where none did, common mistakes are tried and named. Then it says what would be stored: the
event's key, type and object. FILE holds the body byte for byte (- is standard input); nothing is sent or stored, and no secret or
right signature is printed.

Name the provider with --provider and give the secret, or a source of --config FILE with --source, whose secrets and address are taken.
The age of a signed time is judged against --at; without it a captured delivery counts as received when it was signed.`,
		Example: `  postern provider test body.json --provider stripe --header "Stripe-Signature: t=...,v1=..." --secret-file whsec
  postern provider test body.form --provider twilio --header "X-Twilio-Signature: ..." --url https://hooks.example/webhooks/sms --secret "$TOKEN"
  postern provider test body.json --config postern.yaml --source acme --header "X-Acme-Signature: ..." --at 2026-01-02T15:04:05Z`,
		Args: wantArgs("FILE"),
	}
	f := cmd.Flags()
	f.StringVar(&t.provider, "provider", "", "`name` of the provider; see postern providers list")
	f.StringVar(&t.source, "source", "", "`name` of a source of --config or of the dev instance, instead of --provider")
	f.StringArrayVar(&t.headers, "header", nil, "a `header` of the delivery, \"Name: value\"; repeat it for each")
	f.StringArrayVar(&t.secrets, "secret", nil, "signing `secret`; repeat it for several")
	f.StringVar(&t.secretFile, "secret-file", "", "`file` with the signing secret")
	f.StringVar(&t.url, "url", "", "the `address` the sender was given, where it is signed")
	f.StringVar(&t.query, "query", "", "the request's `query`, without the question mark")
	f.StringVar(&t.method, "method", http.MethodPost, "the request's `method`")
	f.StringVar(&t.at, "at", "", "`time` of receipt (RFC 3339, or now)")
	f.DurationVar(&t.tolerance, "tolerance", 0, "how far a signed time may lie from --at (default: the provider's)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return t.run(cmd, c, args[0]) }
	return cmd
}

// explained is what came of it.
type explained struct {
	Proven bool             `json:"proven"`
	Steps  []signature.Step `json:"steps"`
	Answer string           `json:"answer,omitempty"`
	Events []wouldBe        `json:"events,omitempty"`
	// reason is why a gateway would refuse it, "" where it would not.
	reason string
}

// refuse adds why a gateway would not take the delivery.
func (x *explained) refuse(r *provider.Rejection) {
	x.Proven, x.reason = false, string(r.Reason)
	x.Steps = append(x.Steps, signature.Step{Name: "refused", Detail: string(r.Reason) + ": " + r.Reason.Explain()})
}

// wouldBe is an event that would be stored.
type wouldBe struct {
	Key        string `json:"event_id"`
	Type       string `json:"type"`
	Account    string `json:"account,omitempty"`
	ObjectType string `json:"object_type,omitempty"`
	ObjectID   string `json:"object_id,omitempty"`
	OccurredAt string `json:"occurred_at,omitempty"`
	Says       string `json:"says"`
}

func (t *captured) run(cmd *cobra.Command, c *cli, file string) error {
	p, src, err := t.subject(c)
	if err != nil {
		return err
	}
	body, err := readData(file, cmd.InOrStdin())
	if err != nil {
		return fmt.Errorf("read delivery: %w", err)
	}
	d, err := t.delivery(body)
	if err != nil {
		return err
	}
	out, err := explain(p, src, d, t.at == "")
	if err != nil {
		return err
	}
	if c.output == "json" {
		err = printJSON(cmd.OutOrStdout(), out)
	} else {
		err = out.tell(cmd)
	}
	if err == nil && out.reason != "" {
		err = fmt.Errorf("a gateway would refuse this delivery: %s", out.reason)
	}
	return err
}

// subject is the provider, and the source as it would be configured.
func (t *captured) subject(c *cli) (provider.Provider, *provider.Source, error) {
	src := &provider.Source{Name: "test", Accounts: []string{"*"}}
	var p provider.Provider
	switch {
	case t.source != "" && t.provider != "":
		return nil, nil, usagef("name --provider or --source, not both")
	case t.source != "":
		found, err := t.configured(c)
		if err != nil {
			return nil, nil, err
		}
		p, src = found.Provider, found.Source
	case t.provider != "":
		var err error
		if p, err = namedProvider(t.provider); err != nil {
			return nil, nil, err
		}
	default:
		return nil, nil, usagef("which sender is it? Name --provider NAME (see postern providers list), or --source NAME with --config FILE")
	}
	if err := t.giveSecrets(src); err != nil {
		return nil, nil, err
	}
	if t.url != "" {
		src.URL = t.url
	}
	if t.tolerance != 0 {
		src.Tolerance = t.tolerance
	}
	if err := p.Check(src); err != nil {
		return nil, nil, usagef("%v", err)
	}
	return p, src, nil
}

func (t *captured) giveSecrets(src *provider.Source) error {
	values := make([][]byte, 0, len(t.secrets)+1)
	for _, s := range t.secrets {
		values = append(values, []byte(s))
	}
	if t.secretFile != "" {
		b, err := os.ReadFile(t.secretFile)
		if err != nil {
			return fmt.Errorf("read secret: %w", err)
		}
		values = append(values, bytes.TrimRight(b, "\r\n"))
	}
	if len(values) > 0 {
		src.Secrets = nil
	}
	for i, value := range values {
		src.Secrets = append(src.Secrets, provider.Secret{Name: fmt.Sprintf("secret %d", i+1), Value: value})
	}
	if len(src.Secrets) == 0 {
		return usagef("no secret: give the one this delivery was signed with by --secret or --secret-file")
	}
	return nil
}

// configured is a source of --config, or a demo source of the dev instance.
func (t *captured) configured(c *cli) (config.Endpoint, error) {
	endpoints := (&config.Config{Sources: config.DemoSources()}).Endpoints()
	if c.config != "" {
		cfg, err := config.LoadDev(c.config)
		if err != nil {
			return config.Endpoint{}, err
		}
		endpoints = cfg.Endpoints()
	}
	var names []string
	for _, e := range endpoints {
		if e.Source.Name == t.source {
			return e, nil
		}
		names = append(names, e.Source.Name)
	}
	return config.Endpoint{}, usagef("there is no source %q; there are %s", t.source, orDash(strings.Join(names, ", ")))
}

func namedProvider(name string) (provider.Provider, error) {
	p, ok := all.Named(name)
	if !ok {
		return nil, usagef("provider %q is not known: name one of %s", name, strings.Join(providers(), ", "))
	}
	return p, nil
}

func (t *captured) delivery(body []byte) (*provider.Delivery, error) {
	d := &provider.Delivery{Method: t.method, Query: t.query, Header: http.Header{}, Body: body, ReceivedAt: time.Now()}
	for _, h := range t.headers {
		name, value, ok := strings.Cut(h, ":")
		if !ok || strings.TrimSpace(name) == "" {
			return nil, usagef("header %q: write \"Name: value\"", h)
		}
		d.Header.Add(textproto.TrimString(name), textproto.TrimString(value))
	}
	if t.at == "" || t.at == "now" {
		return d, nil
	}
	at, err := time.Parse(time.RFC3339, t.at)
	if err != nil {
		return nil, usagef("at %q: write a time like 2026-01-02T15:04:05Z", t.at)
	}
	d.ReceivedAt = at
	return d, nil
}

// explain goes the way of a delivery. With anyAge a signed time is taken for the time of receipt.
func explain(p provider.Provider, src *provider.Source, d *provider.Delivery, anyAge bool) (*explained, error) {
	v, err := p.Verify(src, d)
	var refused *provider.Rejection
	aged := errors.As(err, &refused) && (refused.Reason == provider.StaleTimestamp || refused.Reason == provider.FutureTimestamp)
	if aged && anyAge {
		patient := *src
		patient.Tolerance = 1 << 62
		v, err = p.Verify(&patient, d)
		d.ReceivedAt = v.SignedAt
	}
	if err != nil && !errors.As(err, &refused) {
		return nil, err
	}
	out := &explained{Proven: err == nil}
	if out.Steps, err = steps(p, src, d); err != nil {
		return nil, err
	}
	if !out.Proven {
		out.refuse(refused)
		return out, nil
	}
	if g, ok := p.(provider.Greeter); ok {
		if reply := g.Greet(src, d); reply != nil {
			out.Answer = fmt.Sprintf("a greeting: it is answered with %q, and nothing is stored", reply.Body)
			return out, nil
		}
	}
	a, err := provider.Accept(p, src, d)
	if invalid := new(provider.Invalid); errors.As(err, &invalid) {
		out.Answer, out.reason = fmt.Sprintf("refused with %d, and nothing is stored: %s", invalid.Status, invalid.Detail), "it cannot be stored"
		return out, nil
	}
	if err != nil {
		return nil, err
	}
	return out, out.read(p, src, a.Delivery)
}

// steps are those of the scheme that the delivery has a signature of, else of the first.
func steps(p provider.Provider, src *provider.Source, d *provider.Delivery) ([]signature.Step, error) {
	if e, ok := p.(provider.Explainer); ok {
		return e.Explain(src, d), nil
	}
	signed, ok := p.(provider.Signed)
	if !ok {
		return nil, fmt.Errorf("provider %s does not show how it signs", p.Name())
	}
	return provider.Explain(src, d, signed.Schemes()...), nil
}

// read says what would be stored and what it says of which object.
func (x *explained) read(p provider.Provider, src *provider.Source, d *provider.Delivery) error {
	found, err := p.Identify(src, d)
	if refused := new(provider.Rejection); errors.As(err, &refused) {
		x.refuse(refused)
		return nil
	}
	if err != nil {
		return err
	}
	for i, e := range found {
		one := wouldBe{Key: e.Key, Type: e.Type, Account: e.Account, ObjectType: e.ObjectType, ObjectID: e.ObjectID}
		if !e.OccurredAt.IsZero() {
			one.OccurredAt = e.OccurredAt.Format(time.RFC3339Nano)
		}
		o, err := provider.Observe(p, src, &provider.Stored{Key: e.Key, Type: e.Type, Account: e.Account, APIVersion: e.APIVersion, ReceivedAt: d.ReceivedAt, Index: i, Body: d.Body})
		one.Says = says(o, err)
		x.Events = append(x.Events, one)
	}
	return nil
}

// says is what an event says of its object, in words.
func says(o provider.Observation, err error) string {
	switch {
	case err != nil:
		return "dead: " + err.Error()
	case o.Ignored != "":
		return "ignored: " + o.Ignored
	case o.Partial != "":
		return "a look is owed: " + o.Partial
	case o.Deleted && o.Final:
		return "the object is gone for good"
	case o.Deleted:
		return "the object is gone"
	}
	return "the object's whole state"
}

func (x *explained) tell(cmd *cobra.Command) error {
	w := cmd.OutOrStdout()
	for _, s := range x.Steps {
		mark := "no"
		if s.OK {
			mark = "ok"
		}
		if _, err := fmt.Fprintf(w, "%s  %-10s %s\n", mark, s.Name, plain(s.Detail)); err != nil {
			return err
		}
	}
	if x.Answer != "" {
		_, err := fmt.Fprintln(w, plain(x.Answer))
		return err
	}
	for _, e := range x.Events {
		fmt.Fprintln(w)
		object := ""
		if e.ObjectType != "" {
			object = e.ObjectType + " " + e.ObjectID
		}
		if err := facts(w, "event id", e.Key, "type", e.Type, "account", e.Account, "object", object, "occurred", e.OccurredAt, "says", e.Says); err != nil {
			return err
		}
	}
	return nil
}
