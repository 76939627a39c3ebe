package main

import (
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
	provider   provider.Provider
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
other than 2xx makes the exit status 1.`,
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
	f.BoolVar(&s.tamper, "tamper", false, "change the body after it was signed")
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
	sample, err := s.sample(cmd.InOrStdin())
	if err != nil {
		return err
	}
	to, err := s.target(c)
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
func (s *sending) sample(in io.Reader) (provider.Sample, error) {
	if s.data != "" {
		body, err := readData(s.data, in)
		if err != nil {
			return provider.Sample{}, fmt.Errorf("read data: %w", err)
		}
		return provider.Sample{Type: s.eventType, Body: body}, nil
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
			d.Body = append(slices.Clip(d.Body), ' ') // still JSON, and still not what was signed
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
