package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/all"
)

// sending is one execution of `postern send`.
type sending struct {
	*call
	provider provider.Provider
	// isDescribed is true if the source's configuration describes its provider.
	isDescribed bool
	source      *provider.Source
	// url is the complete address of the source.
	url string
	// instance is the instance with this address; nil if the address is not from a folder.
	instance         *config.Instance
	count, duplicate int
}

func newSendCommand(c *cli) *cobra.Command {
	var s sending
	return command{
		use: "send PROVIDER TYPE", short: "Send correctly signed, realistic test deliveries of a provider",
		offline: true,
		long: `Send a delivery like the provider: realistic, signed, with a new event id. Without
--url it is sent to the dev instance in --dir (or the address in --config), signed with the source's
secret there. postern providers show PROVIDER lists the types.

All of --count events concern the same object, unless --new-objects is given, and each changes it.
They happen one second apart in the provider's time, the last one now, so --shuffle shows that late
events change nothing. With --data the body is yours, and only the ids, times and numbers that
--count needs are changed. Receipts are printed; a response other than 2xx makes the exit status 1.
If the sender requires its own response format, only the id in the receipt is known.

Events of some senders are separate objects (a payment of adyen, message.received of twilio, an
event of mailgun): each of --count is then a new object, and --shuffle has no effect. --tamper
changes a signed byte, if there is one. Some senders sign little or nothing of the body (see postern
providers show NAME); then the delivery is accepted, the command says so, and the exit status is 0.`,
		example: `  postern send stripe invoice.paid
  postern send shopify orders/create --count 100 --new-objects --shuffle
  postern send stripe customer.updated --count 5 --shuffle # late ones change nothing: see postern outcomes list
  postern send stripe customer.updated --duplicate 3       # the same event four times
  postern send stripe invoice.paid --tamper                # rejected: the signature does not match
  postern send stripe invoice.paid --data body.json --url https://hooks.example/webhooks/live --secret-file secret`,
		complete: completeSend,
		flags: []flag{{"url", "`address` to send to: an instance or a complete ingest URL", true},
			{"source", "`name` of the source (default: the instance's source of this provider)", true},
			{"account", "tenant to send as (Shopify shop)", true},
			{"secret", "signing secret (default: the instance's)", true},
			{"secret-file", "`file` with the signing secret", true},
			{"data", "`file` with the body to send, - for standard input", true},
			{"new-objects", "each event concerns a new object", false}, {"shuffle", "send in random order", false},
			{"tamper", "change the body after it was signed, in a signed place if there is one", false}},
		moreFlags: func(cmd *cobra.Command) {
			cmd.Flags().IntVar(&s.count, "count", 1, "number of events, each with its own id")
			cmd.Flags().IntVar(&s.duplicate, "duplicate", 0, "how many more times each delivery is sent")
			cmd.MarkFlagsMutuallyExclusive("secret", "secret-file")
		},
		run: func(x *call) error {
			s.call = x
			return s.run()
		},
	}.build(c)
}

func completeSend(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	switch len(args) {
	case 0:
		return providerNames(), cobra.ShellCompDirectiveNoFileComp
	case 1:
		if p, ok := all.Named(args[0]); ok {
			return sampleTypes(p), cobra.ShellCompDirectiveNoFileComp
		}
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

func (s *sending) run() (err error) {
	if s.provider, err = findProvider(s.args[0]); err != nil {
		return err
	}
	if s.count < 1 || s.duplicate < 0 {
		return usagef("--count must be at least 1 and --duplicate at least 0")
	}
	if err := s.findTarget(); err != nil {
		return err
	}
	sample, err := s.findSample()
	if err != nil {
		return err
	}
	deliveries, err := s.signDeliveries(sample)
	if err != nil {
		return err
	}
	return s.sendAll(deliveries)
}

// knownSource is a source of the instance.
type knownSource struct {
	// configured is the provider in the source's configuration; nil if the configuration is not
	// known. isDescribed is true if the source describes its provider.
	configured             provider.Provider
	isDescribed            bool
	provider, account, url string
	secret                 []byte
}

// findTarget combines flags, configuration and dev instance, in this order of priority.
func (s *sending) findTarget() error {
	base, known, in, err := s.findInstance()
	if err != nil && (s.text("url") == "" || s.text("secret") == "" && s.text("secret-file") == "") {
		return err
	}
	name, src, err := s.chooseSource(known)
	if err != nil {
		return err
	}
	if src.configured != nil {
		s.provider, s.isDescribed = src.configured, src.isDescribed
	}
	secret, err := s.findSecret(known, name)
	if err != nil {
		return err
	}
	address, err := parseURL(cmp.Or(s.text("url"), base), "http://127.0.0.1:8080")
	if err != nil {
		return err
	}
	if strings.Trim(address.Path, "/") == "" {
		address.Path = "/webhooks/" + name
	}
	if s.url = address.String(); s.text("url") == "" {
		s.instance = in
	}
	s.source = &provider.Source{Name: name, Account: cmp.Or(s.text("account"), src.account), Accounts: []string{"*"},
		Secrets: []provider.Secret{{Name: "send", Value: secret}}, URL: cmp.Or(src.url, s.url)}
	return nil
}

// findInstance returns the ingest address and the sources of --config or --dir. If both are given,
// the sources are from the configuration and the address from the dev instance. The error matters
// only if the flags are not sufficient.
func (s *sending) findInstance() (base string, known map[string]knownSource, in *config.Instance, err error) {
	if s.config == "" {
		in, err := s.readInstanceFile()
		if err != nil {
			return "", nil, nil, err
		}
		known = map[string]knownSource{}
		for name, src := range in.Sources {
			known[name] = knownSource{provider: src.Provider, account: src.Account, url: src.URL,
				secret: []byte(src.Secret)}
		}
		return in.IngestURL, known, in, nil
	}
	cfg, err := config.LoadDev(s.config)
	if err != nil {
		return "", nil, nil, err
	}
	known = map[string]knownSource{}
	for _, e := range cfg.Endpoints() {
		account := e.Source.Account
		if account == "" && len(e.Source.Accounts) > 0 && e.Source.Accounts[0] != "*" {
			account = e.Source.Accounts[0]
		}
		known[e.Source.Name] = knownSource{configured: e.Provider, isDescribed: e.IsCustomized,
			provider: e.Provider.Name(), account: account,
			url: e.Source.URL, secret: e.Source.Secrets[0].Value}
	}
	scheme := "http://"
	if cfg.Ingest.TLS.Cert != "" {
		scheme = "https://"
	}
	base = scheme + cfg.Ingest.Listen
	if s.dirGiven {
		in, err = s.readInstanceFile()
		switch {
		case err == nil:
			base = in.IngestURL
		case !errors.Is(err, config.ErrNoInstance):
			return "", known, nil, err
		}
	}
	return base, known, in, nil
}

// chooseSource returns the named source, else the source with the provider's name, else the
// provider's only source. With a complete URL the source may be unknown.
func (s *sending) chooseSource(known map[string]knownSource) (string, knownSource, error) {
	var fitting []string
	for name, src := range known {
		if src.provider == s.provider.Name() {
			fitting = append(fitting, name)
		}
	}
	slices.Sort(fitting)
	name := s.text("source")
	switch {
	case name != "":
	case slices.Contains(fitting, s.provider.Name()) || len(fitting) == 0:
		name = s.provider.Name()
	case len(fitting) == 1:
		name = fitting[0]
	default:
		return "", knownSource{}, usagef("several sources are of provider %s: choose one with --source: %s",
			s.provider.Name(), strings.Join(fitting, ", "))
	}
	if src, ok := known[name]; ok && src.provider != s.provider.Name() {
		return "", knownSource{}, usagef("source %s is of provider %s, not %s", name, src.provider, s.provider.Name())
	}
	return name, known[name], nil
}

func (s *sending) findSecret(known map[string]knownSource, source string) ([]byte, error) {
	src, ok := known[source]
	switch {
	case s.text("secret") != "":
		return []byte(s.text("secret")), nil
	case s.text("secret-file") != "":
		return readSecret(s.text("secret-file"))
	case len(src.secret) > 0:
		return src.secret, nil
	case !ok && len(known) > 0 && s.text("url") == "":
		return nil, usagef("source %s is not configured; the sources are %s: add it to the configuration, or choose "+
			"one with --source", source, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
	}
	return nil, usagef("the secret of source %s is not known here (a dev instance knows only demo secrets): give it "+
		"with --secret-file FILE, or name the configuration that has it with --config FILE", source)
}

// findSample returns the event to send: the provider's sample of the type, or the user's body.
func (s *sending) findSample() (provider.Sample, error) {
	if file := s.text("data"); file != "" {
		body, err := readData(file, s.in)
		if err != nil {
			return provider.Sample{}, fmt.Errorf("read data: %w", err)
		}
		return provider.Sample{Type: s.args[1], Body: body}, nil
	}
	if s.isDescribed {
		return provider.Sample{}, usagef("source %s describes its own event names, so Postern has no sample for "+
			"it: give a body of that sender with --data FILE", s.source.Name)
	}
	types := sampleTypes(s.provider)
	for _, sample := range s.provider.Samples() {
		if sample.Type == s.args[1] {
			return sample, nil
		}
	}
	return provider.Sample{}, usagef("no sample of %s has type %q: give a body with --data FILE, or use one of %s",
		s.provider.Name(), s.args[1], strings.Join(types, ", "))
}

// signDeliveries returns the signed deliveries. Their events are one second apart and the last one
// is now, because a provider's clock often counts whole seconds and never runs ahead. A single body
// from the user stays unchanged.
func (s *sending) signDeliveries(sample provider.Sample) ([]*provider.Delivery, error) {
	now := time.Now()
	var out []*provider.Delivery
	for n := range s.count {
		one, err := sample, error(nil)
		if s.text("data") == "" || s.count > 1 {
			one, err = s.provider.MakeVariant(sample, n+1, now.Add(time.Duration(n+1-s.count)*time.Second),
				s.has("new-objects"))
		}
		var d *provider.Delivery
		if err == nil {
			d, err = s.provider.Sign(s.source, one, now)
		}
		if err != nil {
			return nil, fmt.Errorf("make %s %s: %w", s.provider.Name(), s.args[1], err)
		}
		if s.has("tamper") {
			d.Body = s.tamperBody(d)
		}
		for range s.duplicate + 1 {
			out = append(out, d)
		}
	}
	if s.has("shuffle") {
		rand.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	}
	return out, nil
}

// maxTamperAttempts limits the search for a signed byte.
const maxTamperAttempts = 500

// tamperBody returns the body with a change that makes its signature invalid, if there is one. It
// tries a space at the end, which does not change JSON, and then other digits or letters.
func (s *sending) tamperBody(d *provider.Delivery) []byte {
	spaced := append(slices.Clip(d.Body), ' ')
	if s.rejects(d, spaced) {
		return spaced
	}
	tried := 0
	for i, c := range d.Body {
		if c < '0' || c > '9' && c < 'a' || c > 'y' {
			continue
		}
		body := slices.Clone(d.Body)
		if body[i] = c + 1; c == '9' {
			body[i] = '1'
		}
		if s.rejects(d, body) {
			return body
		}
		if tried++; tried == maxTamperAttempts {
			break
		}
	}
	return spaced
}

// rejects reports whether the provider finds a wrong signature for another body.
func (s *sending) rejects(d *provider.Delivery, body []byte) bool {
	other := *d
	other.Body, other.ReceivedAt = body, time.Now()
	_, err := s.provider.Verify(s.source, &other)
	var rejection *provider.Rejection
	return errors.As(err, &rejection) && rejection.Reason == provider.WrongSignature
}
