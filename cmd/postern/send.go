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

// sending is what `postern send` was asked for.
type sending struct {
	provider provider.Provider
	// own: the provider is made of what the source's configuration says.
	own        bool
	eventType  string
	url        string
	source     string
	account    string
	secret     string
	secretFile string
	data       string
	count      int
	duplicate  int
	newObjects bool
	shuffle    bool
	tamper     bool
}

func newSendCommand(c *cli) *cobra.Command {
	s := &sending{}
	cmd := &cobra.Command{
		Use:   "send PROVIDER TYPE",
		Short: "Send a correctly signed, realistic delivery: try a provider without the provider",
		Long: `Send a delivery as the provider would: realistic, signed, with an event id of its own. Without --url it goes to the dev
instance in --dir (or the address in --config), signed with the secret it has for the source.

Each of --count events concerns the same object unless --new-objects is given, and each changes something in it: they
happened one second apart on the provider's clock, the last one now, so that --shuffle shows newer-only. With --data the body
is yours; it is sent as it is, but for the ids, times and numbers that --count must vary. Receipts are printed; an answer
other than 2xx makes the exit status 1. Where the sender wants an answer of its own kind, only the receipt's id is known.

Some senders' events are objects of their own (a payment of adyen, message.received of twilio, an event of mailgun): each of
--count is then a new object whether --new-objects is given or not, and --shuffle has nothing newer to keep.
--tamper changes a byte that is signed, where there is one: some senders sign little or nothing of the body (see postern
providers show NAME); then the delivery is accepted, which is said, and the exit status is 0.`,
		Example: `  postern send stripe invoice.paid
  postern send shopify orders/create --count 100 --new-objects --shuffle
  postern send stripe customer.updated --count 5 --shuffle # late ones change nothing: see postern outcomes list
  postern send stripe customer.updated --duplicate 3       # the same event four times
  postern send stripe invoice.paid --tamper                # refused: the body is not what was signed
  postern send stripe invoice.paid --data body.json --url https://hooks.example/webhooks/live --secret-file secret`,
		Args:              wantArgs("PROVIDER", "TYPE"),
		ValidArgsFunction: completeSend,
	}
	f := cmd.Flags()
	f.StringVar(&s.url, "url", "", "`address` to send to: the instance's, or a whole ingest URL")
	f.StringVar(&s.source, "source", "", "`name` of the source (default: the instance's source of this provider)")
	f.StringVar(&s.account, "account", "", "tenant to send as (Shopify shop)")
	f.StringVar(&s.secret, "secret", "", "signing secret (default: the instance's)")
	f.StringVar(&s.secretFile, "secret-file", "", "`file` with the signing secret")
	f.StringVar(&s.data, "data", "", "`file` with the body to send, - for standard input")
	f.IntVar(&s.count, "count", 1, "how many events, each with an id of its own")
	f.IntVar(&s.duplicate, "duplicate", 0, "how many times more each delivery is sent")
	f.BoolVar(&s.newObjects, "new-objects", false, "each event concerns an object of its own")
	f.BoolVar(&s.shuffle, "shuffle", false, "send in random order")
	f.BoolVar(&s.tamper, "tamper", false, "change the body after it was signed, at a place that is signed if there is one")
	cmd.MarkFlagsMutuallyExclusive("secret", "secret-file")
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return s.run(cmd, c, args) }
	return cmd
}

func (s *sending) run(cmd *cobra.Command, c *cli, args []string) error {
	var ok bool
	if s.provider, ok = all.Named(args[0]); !ok {
		return usagef("provider %q is not known: name one of %s", args[0], strings.Join(providers(), ", "))
	}
	s.eventType = args[1]
	if s.count < 1 || s.duplicate < 0 {
		return usagef("count is at least 1 and duplicate at least 0")
	}
	to, err := s.target(c)
	if err != nil {
		return err
	}
	sample, err := s.sample(to, cmd.InOrStdin())
	if err != nil {
		return err
	}
	deliveries, err := s.deliveries(to.source, sample)
	if err != nil {
		return err
	}
	to.tampered = s.tamper
	return to.post(cmd, c.output == "json", deliveries)
}

// sample is the event to send: the provider's own of the type, or the user's body.
func (s *sending) sample(to *target, in io.Reader) (provider.Sample, error) {
	if s.data != "" {
		body, err := readData(s.data, in)
		if err != nil {
			return provider.Sample{}, fmt.Errorf("read data: %w", err)
		}
		return provider.Sample{Type: s.eventType, Body: body}, nil
	}
	if s.own {
		return provider.Sample{}, usagef("source %s says itself how its sender names events, so no sample of ours fits: give a body of that sender with --data FILE", to.source.Name)
	}
	types := sampleTypes(s.provider)
	for _, sample := range s.provider.Samples() {
		if sample.Type == s.eventType {
			return sample, nil
		}
	}
	return provider.Sample{}, usagef("no sample of %s is of type %q: give a body with --data FILE, or name one of %s", s.provider.Name(), s.eventType, strings.Join(types, ", "))
}

func readData(path string, in io.Reader) ([]byte, error) {
	if path == "-" {
		return io.ReadAll(in)
	}
	return os.ReadFile(path)
}

// deliveries are what goes out, signed now: events one second apart, the last one now, since a provider's clock often counts
// whole seconds and never runs ahead. A single body of the user's is left exactly as it is.
func (s *sending) deliveries(src *provider.Source, sample provider.Sample) ([]*provider.Delivery, error) {
	now := time.Now()
	var out []*provider.Delivery
	for n := range s.count {
		one, err := sample, error(nil)
		if s.data == "" || s.count > 1 {
			one, err = s.provider.Vary(sample, n+1, now.Add(time.Duration(n+1-s.count)*time.Second), s.newObjects)
		}
		var d *provider.Delivery
		if err == nil {
			d, err = s.provider.Sign(src, one, now)
		}
		if err != nil {
			return nil, fmt.Errorf("make %s %s: %w", s.provider.Name(), s.eventType, err)
		}
		if s.tamper {
			d.Body = s.tampered(src, d)
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

// maxTamper is how many places are tried for one that is signed.
const maxTamper = 500

// tampered is the body with a change that its signature does not stand, if there is one: a space at the end, which leaves JSON what it
// was, else another digit or letter somewhere.
func (s *sending) tampered(src *provider.Source, d *provider.Delivery) []byte {
	spaced := append(slices.Clip(d.Body), ' ')
	if s.refuses(src, d, spaced) {
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
		if s.refuses(src, d, body) {
			return body
		}
		if tried++; tried == maxTamper {
			break
		}
	}
	return spaced
}

// refuses tells whether a delivery with another body has the wrong signature.
func (s *sending) refuses(src *provider.Source, d *provider.Delivery, body []byte) bool {
	other := *d
	other.Body, other.ReceivedAt = body, time.Now()
	_, err := s.provider.Verify(src, &other)
	var refused *provider.Rejection
	return errors.As(err, &refused) && refused.Reason == provider.WrongSignature
}

func providers() []string {
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
		return providers(), cobra.ShellCompDirectiveNoFileComp
	case 1:
		if p, ok := all.Named(args[0]); ok {
			return sampleTypes(p), cobra.ShellCompDirectiveNoFileComp
		}
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}
