package main

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/all"
)

// sendFlags are the arguments and flags of `postern send`.
type sendFlags struct {
	provider provider.Provider
	// isDescribed is true if the source's configuration describes its provider.
	isDescribed bool
	eventType   string
	url         string
	source      string
	account     string
	secret      string
	secretFile  string
	data        string
	count       int
	duplicate   int
	newObjects  bool
	shuffle     bool
	tamper      bool
}

func newSendCommand(c *cli) *cobra.Command {
	s := &sendFlags{}
	cmd := &cobra.Command{
		Use:   "send PROVIDER TYPE",
		Short: "Send correctly signed, realistic test deliveries of a provider",
		Long: `Send a delivery like the provider: realistic, signed, with a new event id. Without
--url it is sent to the dev instance in --dir (or the address in --config), signed with the source's
secret there.

All of --count events concern the same object, unless --new-objects is given, and each changes it.
They happen one second apart in the provider's time, the last one now, so --shuffle shows that late
events change nothing. With --data the body is yours, and only the ids, times and numbers that
--count needs are changed. Receipts are printed; a response other than 2xx makes the exit status 1.
If the sender requires its own response format, only the id in the receipt is known.

Events of some senders are separate objects (a payment of adyen, message.received of twilio, an
event of mailgun): each of --count is then a new object, and --shuffle has no effect. --tamper
changes a signed byte, if there is one. Some senders sign little or nothing of the body (see postern
providers show NAME); then the delivery is accepted, the command says so, and the exit status is 0.`,
		Example: `  postern send stripe invoice.paid
  postern send shopify orders/create --count 100 --new-objects --shuffle
  postern send stripe customer.updated --count 5 --shuffle # late ones change nothing: see postern outcomes list
  postern send stripe customer.updated --duplicate 3       # the same event four times
  postern send stripe invoice.paid --tamper                # rejected: the signature does not match
  postern send stripe invoice.paid --data body.json --url https://hooks.example/webhooks/live --secret-file secret`,
		Args:              wantArgs("PROVIDER", "TYPE"),
		ValidArgsFunction: completeSend,
	}
	f := cmd.Flags()
	f.StringVar(&s.url, "url", "", "`address` to send to: an instance or a complete ingest URL")
	f.StringVar(&s.source, "source", "", "`name` of the source (default: the instance's source of this provider)")
	f.StringVar(&s.account, "account", "", "tenant to send as (Shopify shop)")
	f.StringVar(&s.secret, "secret", "", "signing secret (default: the instance's)")
	f.StringVar(&s.secretFile, "secret-file", "", "`file` with the signing secret")
	f.StringVar(&s.data, "data", "", "`file` with the body to send, - for standard input")
	f.IntVar(&s.count, "count", 1, "number of events, each with its own id")
	f.IntVar(&s.duplicate, "duplicate", 0, "how many more times each delivery is sent")
	f.BoolVar(&s.newObjects, "new-objects", false, "each event concerns a new object")
	f.BoolVar(&s.shuffle, "shuffle", false, "send in random order")
	f.BoolVar(&s.tamper, "tamper", false, "change the body after it was signed, in a signed place if there is one")
	cmd.MarkFlagsMutuallyExclusive("secret", "secret-file")
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return s.run(cmd, c, args) }
	return cmd
}

func (s *sendFlags) run(cmd *cobra.Command, c *cli, args []string) error {
	var ok bool
	if s.provider, ok = all.Named(args[0]); !ok {
		return usagef("provider %q is not known: name one of %s", args[0], strings.Join(providerNames(), ", "))
	}
	s.eventType = args[1]
	if s.count < 1 || s.duplicate < 0 {
		return usagef("--count must be at least 1 and --duplicate at least 0")
	}
	to, err := s.findTarget(c)
	if err != nil {
		return err
	}
	sample, err := s.findSample(to, cmd.InOrStdin())
	if err != nil {
		return err
	}
	deliveries, err := s.signDeliveries(to.source, sample)
	if err != nil {
		return err
	}
	to.expectRejection = s.tamper
	return to.sendAll(cmd, c.output == "json", deliveries)
}

// findSample returns the event to send: the provider's sample of the type, or the user's body.
func (s *sendFlags) findSample(to *target, in io.Reader) (provider.Sample, error) {
	if s.data != "" {
		body, err := readData(s.data, in)
		if err != nil {
			return provider.Sample{}, fmt.Errorf("read data: %w", err)
		}
		return provider.Sample{Type: s.eventType, Body: body}, nil
	}
	if s.isDescribed {
		return provider.Sample{}, usagef("source %s describes its own event names, so Postern has no sample for "+
			"it: give a body of that sender with --data FILE", to.source.Name)
	}
	types := sampleTypes(s.provider)
	for _, sample := range s.provider.Samples() {
		if sample.Type == s.eventType {
			return sample, nil
		}
	}
	return provider.Sample{}, usagef("no sample of %s has type %q: give a body with --data FILE, or use one of %s",
		s.provider.Name(), s.eventType, strings.Join(types, ", "))
}

func readData(path string, in io.Reader) ([]byte, error) {
	if path == "-" {
		return io.ReadAll(in)
	}
	return os.ReadFile(path)
}

// signDeliveries returns the signed deliveries. Their events are one second apart and the last one
// is now, because a provider's clock often counts whole seconds and never runs ahead. A single body
// from the user stays unchanged.
func (s *sendFlags) signDeliveries(src *provider.Source, sample provider.Sample) ([]*provider.Delivery, error) {
	now := time.Now()
	var out []*provider.Delivery
	for n := range s.count {
		one, err := sample, error(nil)
		if s.data == "" || s.count > 1 {
			one, err = s.provider.MakeVariant(sample, n+1, now.Add(time.Duration(n+1-s.count)*time.Second),
				s.newObjects)
		}
		var d *provider.Delivery
		if err == nil {
			d, err = s.provider.Sign(src, one, now)
		}
		if err != nil {
			return nil, fmt.Errorf("make %s %s: %w", s.provider.Name(), s.eventType, err)
		}
		if s.tamper {
			d.Body = s.tamperBody(src, d)
		}
		for range s.duplicate + 1 {
			out = append(out, d)
		}
	}
	if s.shuffle {
		rand.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	}
	return out, nil
}

// maxTamperAttempts limits the search for a signed byte.
const maxTamperAttempts = 500

// tamperBody returns the body with a change that makes its signature invalid, if there is one. It
// tries a space at the end, which does not change JSON, and then other digits or letters.
func (s *sendFlags) tamperBody(src *provider.Source, d *provider.Delivery) []byte {
	spaced := append(slices.Clip(d.Body), ' ')
	if s.rejects(src, d, spaced) {
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
		if s.rejects(src, d, body) {
			return body
		}
		if tried++; tried == maxTamperAttempts {
			break
		}
	}
	return spaced
}

// rejects reports whether the provider finds a wrong signature for another body.
func (s *sendFlags) rejects(src *provider.Source, d *provider.Delivery, body []byte) bool {
	other := *d
	other.Body, other.ReceivedAt = body, time.Now()
	_, err := s.provider.Verify(src, &other)
	var rejection *provider.Rejection
	return errors.As(err, &rejection) && rejection.Reason == provider.WrongSignature
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
