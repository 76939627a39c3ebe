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

// testDelivery holds the flags of `postern provider test`.
type providerTestFlags struct {
	provider   string
	source     string
	headers    []string
	secrets    []string
	secretFile string
	url        string
	query      string
	method     string
	receivedAt string
	tolerance  time.Duration
}

func newProviderTestCommand(c *cli) *cobra.Command {
	t := &providerTestFlags{}
	cmd := &cobra.Command{
		Use:   "test FILE",
		Short: "Explain step by step why the signature of a captured delivery is valid or not",
		Long: `Verify a captured delivery like a gateway and explain each step: where the signature
was searched, which bytes are signed, which secret matched. If none did, common mistakes are tried
and named. Then it shows what would be stored: the event's id, type and object. FILE contains the
exact bytes of the body (- is standard input). Nothing is sent or stored, and no secret or correct
signature is printed.

Name the provider with --provider and give the secret, or name a source of --config FILE with
--source to use its secrets and address. The age of a signed time is compared with --at; without
--at, the signed time is the time of receipt.`,
		Example: `  postern provider test body.json --provider stripe --header "Stripe-Signature: t=...,v1=..." ` +
			`--secret-file whsec
  postern provider test body.form --provider twilio --header "X-Twilio-Signature: ..." ` +
			`--url https://hooks.example/webhooks/sms --secret "$TOKEN"
  postern provider test body.json --config postern.yaml --source acme --header "X-Acme-Signature: ..." ` +
			`--at 2026-01-02T15:04:05Z`,
		Args: wantArgs("FILE"),
	}
	f := cmd.Flags()
	f.StringVar(&t.provider, "provider", "", "`name` of the provider; see postern providers list")
	f.StringVar(&t.source, "source", "", "`name` of a source of --config or of the dev instance, instead of --provider")
	f.StringArrayVar(&t.headers, "header", nil, "a `header` of the delivery, \"Name: value\"; repeat it for each")
	f.StringArrayVar(&t.secrets, "secret", nil, "signing `secret`; repeat it for several")
	f.StringVar(&t.secretFile, "secret-file", "", "`file` with the signing secret")
	f.StringVar(&t.url, "url", "", "the webhook `address` at the sender, if the provider signs it")
	f.StringVar(&t.query, "query", "", "the request's `query`, without the question mark")
	f.StringVar(&t.method, "method", http.MethodPost, "the request's `method`")
	f.StringVar(&t.receivedAt, "at", "", "`time` of receipt (RFC 3339, or now)")
	f.DurationVar(&t.tolerance, "tolerance", 0,
		"maximum difference between the signed time and --at (default: the provider's)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return t.run(cmd, c, args[0]) }
	return cmd
}

// testResult is the result of the test.
type testResult struct {
	Verified bool             `json:"verified"`
	Steps    []signature.Step `json:"steps"`
	Response string           `json:"answer,omitempty"`
	Events   []parsedEvent    `json:"events,omitempty"`
	// rejectReason is why a gateway would reject the delivery; "" if it would not.
	rejectReason string
}

// addRejection adds the reason why a gateway would reject the delivery.
func (x *testResult) addRejection(r *provider.Rejection) {
	x.Verified, x.rejectReason = false, string(r.Reason)
	x.Steps = append(x.Steps, signature.Step{Name: "rejected", Detail: string(r.Reason) + ": " + r.Reason.Explain()})
}

// parsedEvent is an event that a gateway would store.
type parsedEvent struct {
	Key        string `json:"event_id"`
	Type       string `json:"type"`
	Account    string `json:"account,omitempty"`
	ObjectType string `json:"object_type,omitempty"`
	ObjectID   string `json:"object_id,omitempty"`
	OccurredAt string `json:"occurred_at,omitempty"`
	Effect     string `json:"says"`
}

func (t *providerTestFlags) run(cmd *cobra.Command, c *cli, file string) error {
	p, src, err := t.providerAndSource(c)
	if err != nil {
		return err
	}
	body, err := readData(file, cmd.InOrStdin())
	if err != nil {
		return fmt.Errorf("read delivery: %w", err)
	}
	d, err := t.newDelivery(body)
	if err != nil {
		return err
	}
	out, err := verifyStepByStep(p, src, d, t.receivedAt == "")
	if err != nil {
		return err
	}
	if c.output == "json" {
		err = printJSON(cmd.OutOrStdout(), out)
	} else {
		err = out.print(cmd)
	}
	if err == nil && out.rejectReason != "" {
		err = fmt.Errorf("a gateway would reject this delivery: %s", out.rejectReason)
	}
	return err
}

// providerAndSource returns the provider and the source as configured by the flags.
func (t *providerTestFlags) providerAndSource(c *cli) (provider.Provider, *provider.Source, error) {
	src := &provider.Source{Name: "test", Accounts: []string{"*"}}
	var p provider.Provider
	switch {
	case t.source != "" && t.provider != "":
		return nil, nil, usagef("name --provider or --source, not both")
	case t.source != "":
		found, err := t.findSource(c)
		if err != nil {
			return nil, nil, err
		}
		p, src = found.Provider, found.Source
	case t.provider != "":
		var err error
		if p, err = findProvider(t.provider); err != nil {
			return nil, nil, err
		}
	default:
		return nil, nil, usagef("no sender given: use --provider NAME (see postern providers list), or --source " +
			"NAME with --config FILE")
	}
	if err := t.setSecrets(src); err != nil {
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

func (t *providerTestFlags) setSecrets(src *provider.Source) error {
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
		return usagef("no secret: give the secret that signed this delivery with --secret or --secret-file")
	}
	return nil
}

// findSource returns a source of --config, or a demo source of the dev instance.
func (t *providerTestFlags) findSource(c *cli) (config.Endpoint, error) {
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

func findProvider(name string) (provider.Provider, error) {
	p, ok := all.Named(name)
	if !ok {
		return nil, usagef("provider %q is not known: name one of %s", name, strings.Join(providerNames(), ", "))
	}
	return p, nil
}

func (t *providerTestFlags) newDelivery(body []byte) (*provider.Delivery, error) {
	header, err := parseHeaders(t.headers)
	if err != nil {
		return nil, err
	}
	d := &provider.Delivery{Method: t.method, Query: t.query, Header: header, Body: body, ReceivedAt: time.Now()}
	if t.receivedAt == "" || t.receivedAt == "now" {
		return d, nil
	}
	at, err := time.Parse(time.RFC3339, t.receivedAt)
	if err != nil {
		return nil, usagef("at %q: use a time like 2026-01-02T15:04:05Z", t.receivedAt)
	}
	d.ReceivedAt = at
	return d, nil
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

// verifyStepByStep processes a delivery like a gateway, without storing anything. With anyAge it
// uses the signed time as the time of receipt.
func verifyStepByStep(p provider.Provider, src *provider.Source, d *provider.Delivery, anyAge bool) (*testResult,
	error) {
	v, err := p.Verify(src, d)
	var rejection *provider.Rejection
	aged := errors.As(err, &rejection) && (rejection.Reason == provider.StaleTimestamp ||
		rejection.Reason == provider.FutureTimestamp)
	if aged && anyAge {
		tolerant := *src
		tolerant.Tolerance = 1 << 62
		v, err = p.Verify(&tolerant, d)
		d.ReceivedAt = v.SignedAt
	}
	if err != nil && !errors.As(err, &rejection) {
		return nil, err
	}
	out := &testResult{Verified: err == nil}
	if out.Steps, err = verificationSteps(p, src, d); err != nil {
		return nil, err
	}
	if !out.Verified {
		out.addRejection(rejection)
		return out, nil
	}
	if g, ok := p.(provider.Handshaker); ok {
		if reply := g.Handshake(src, d); reply != nil {
			out.Response = fmt.Sprintf("a handshake: the response is %q, and nothing is stored", reply.Body)
			return out, nil
		}
	}
	a, err := provider.Accept(p, src, d)
	if invalid := new(provider.InvalidDelivery); errors.As(err, &invalid) {
		out.Response, out.rejectReason = fmt.Sprintf("rejected with %d, and nothing is stored: %s", invalid.Status,
			invalid.Detail), "it cannot be stored"
		return out, nil
	}
	if err != nil {
		return nil, err
	}
	return out, out.addEvents(p, src, a.Delivery)
}

// verificationSteps returns the steps of the signature scheme that the delivery uses, else of the
// first scheme.
func verificationSteps(p provider.Provider, src *provider.Source, d *provider.Delivery) ([]signature.Step, error) {
	if e, ok := p.(provider.Explainer); ok {
		return e.Explain(src, d), nil
	}
	signed, ok := p.(provider.Signed)
	if !ok {
		return nil, fmt.Errorf("provider %s does not explain its signatures", p.Name())
	}
	return provider.Explain(src, d, signed.Schemes()...), nil
}

// addEvents adds the events that a gateway would store and their effect on the mirror.
func (x *testResult) addEvents(p provider.Provider, src *provider.Source, d *provider.Delivery) error {
	found, err := p.Identify(src, d)
	if rejection := new(provider.Rejection); errors.As(err, &rejection) {
		x.addRejection(rejection)
		return nil
	}
	if err != nil {
		return err
	}
	for i, e := range found {
		one := parsedEvent{Key: e.Key, Type: e.Type, Account: e.Account, ObjectType: e.ObjectType, ObjectID: e.ObjectID}
		if !e.OccurredAt.IsZero() {
			one.OccurredAt = e.OccurredAt.Format(time.RFC3339Nano)
		}
		o, err := provider.Observe(p, src, &provider.StoredEvent{Key: e.Key, Type: e.Type, Account: e.Account,
			APIVersion: e.APIVersion, ReceivedAt: d.ReceivedAt, Index: i, Body: d.Body})
		one.Effect = describeObservation(o, err)
		x.Events = append(x.Events, one)
	}
	return nil
}

// describeObservation describes the effect of an event on its object.
func describeObservation(o provider.Observation, err error) string {
	switch {
	case err != nil:
		return "dead: " + err.Error()
	case o.Ignored != "":
		return "ignored: " + o.Ignored
	case o.Partial != "":
		return "refetch needed: " + o.Partial
	case o.Deleted && o.Final:
		return "the object is deleted for good"
	case o.Deleted:
		return "the object is deleted"
	}
	return "the full state of the object"
}

func (x *testResult) print(cmd *cobra.Command) error {
	w := cmd.OutOrStdout()
	for _, s := range x.Steps {
		mark := "no"
		if s.OK {
			mark = "ok"
		}
		if _, err := fmt.Fprintf(w, "%s  %-10s %s\n", mark, s.Name, escapeControl(s.Detail)); err != nil {
			return err
		}
	}
	if x.Response != "" {
		_, err := fmt.Fprintln(w, escapeControl(x.Response))
		return err
	}
	for _, e := range x.Events {
		fmt.Fprintln(w)
		object := ""
		if e.ObjectType != "" {
			object = e.ObjectType + " " + e.ObjectID
		}
		if err := printFields(w, "event id", e.Key, "type", e.Type, "account", e.Account, "object", object,
			"occurred", e.OccurredAt, "says", e.Effect); err != nil {
			return err
		}
	}
	return nil
}
