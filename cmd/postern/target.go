package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/provider"
)

const (
	sendTimeout = 30 * time.Second
	maxAnswer   = 1 << 20
)

// target is where `postern send` delivers, and as which source it signs.
type target struct {
	url    string
	source *provider.Source
	// provider is the provider's name.
	provider string
	// tampered: what is sent should be refused.
	tampered bool
	// instance is the one whose address this is; nil: the address was not found in a folder.
	instance *config.Instance
}

// candidate is a source that the instance has.
type candidate struct {
	// made is the provider of the source's configuration, where that is known; own: of what the source says of its sender.
	made                   provider.Provider
	own                    bool
	provider, account, url string
	secret                 []byte
}

// target puts together what flags, configuration and dev instance say, in this order.
func (s *sending) target(c *cli) (*target, error) {
	base, known, in, found := s.instance(c)
	if found != nil && (s.url == "" || s.secret == "" && s.secretFile == "") {
		return nil, found
	}
	name, src, err := s.choose(known)
	if err != nil {
		return nil, err
	}
	if src.made != nil {
		s.own = src.own
		s.provider = src.made
	}
	secret, err := s.signingSecret(src.secret, name)
	if err != nil {
		return nil, err
	}
	address, err := ingestURL(cmp.Or(s.url, base), name)
	if err != nil {
		return nil, err
	}
	account := cmp.Or(s.account, src.account)
	if s.url != "" {
		in = nil
	}
	return &target{url: address, instance: in, provider: s.provider.Name(), source: &provider.Source{Name: name, Account: account, Accounts: []string{"*"},
		Secrets: []provider.Secret{{Name: "send", Value: secret}}, URL: cmp.Or(src.url, address)}}, nil
}

// instance is the ingest address and the sources of --config or --dir; where both are given, the configuration has the sources and
// the dev instance in the folder the address. The error says why there is none, which matters only where the flags do not say enough.
func (s *sending) instance(c *cli) (base string, known map[string]candidate, in *config.Instance, err error) {
	if c.config == "" {
		in, err := c.readInstance()
		if err != nil {
			return "", nil, nil, err
		}
		known = map[string]candidate{}
		for name, src := range in.Sources {
			known[name] = candidate{provider: src.Provider, account: src.Account, url: src.URL, secret: []byte(src.Secret)}
		}
		return in.IngestURL, known, in, nil
	}
	cfg, err := config.LoadDev(c.config)
	if err != nil {
		return "", nil, nil, err
	}
	known = map[string]candidate{}
	for _, e := range cfg.Endpoints() {
		account := e.Source.Account
		if account == "" && len(e.Source.Accounts) > 0 && e.Source.Accounts[0] != "*" {
			account = e.Source.Accounts[0]
		}
		known[e.Source.Name] = candidate{made: e.Provider, own: e.Own, provider: e.Provider.Name(), account: account,
			url: e.Source.URL, secret: e.Source.Secrets[0].Value}
	}
	scheme := "http://"
	if cfg.Ingest.TLS.Cert != "" {
		scheme = "https://"
	}
	base = scheme + cfg.Ingest.Listen
	if c.dirGiven {
		in, err = c.readInstance()
		switch {
		case err == nil:
			base = in.IngestURL
		case !errors.Is(err, config.ErrNoInstance):
			return "", known, nil, err
		}
	}
	return base, known, in, nil
}

// choose picks the named source, else the one that has the provider's name, else the only one of the provider. Where the
// URL is whole, no source needs to be known.
func (s *sending) choose(known map[string]candidate) (string, candidate, error) {
	var fitting []string
	for name, src := range known {
		if src.provider == s.provider.Name() {
			fitting = append(fitting, name)
		}
	}
	slices.Sort(fitting)
	name := s.source
	switch {
	case name != "":
	case slices.Contains(fitting, s.provider.Name()) || len(fitting) == 0:
		name = s.provider.Name()
	case len(fitting) == 1:
		name = fitting[0]
	default:
		return "", candidate{}, usagef("several sources are of provider %s: choose one with --source: %s", s.provider.Name(), strings.Join(fitting, ", "))
	}
	if src, ok := known[name]; ok && src.provider != s.provider.Name() {
		return "", candidate{}, usagef("source %s is of provider %s, not %s", name, src.provider, s.provider.Name())
	}
	return name, known[name], nil
}

func (s *sending) signingSecret(own []byte, source string) ([]byte, error) {
	switch {
	case s.secret != "":
		return []byte(s.secret), nil
	case s.secretFile != "":
		b, err := os.ReadFile(s.secretFile)
		if err != nil {
			return nil, fmt.Errorf("read secret: %w", err)
		}
		return bytes.TrimRight(b, "\r\n"), nil
	case len(own) > 0:
		return own, nil
	}
	return nil, usagef("the secret of source %s is not known here (a dev instance tells only demo secrets): give it with --secret-file FILE, or name the configuration that has it with --config FILE", source)
}

// ingestURL completes an address without a path.
func ingestURL(address, source string) (string, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return "", usagef("%q is no URL to send to: write e.g. http://127.0.0.1:8080", address)
	}
	if strings.Trim(u.Path, "/") == "" {
		u.Path = "/webhooks/" + source
	}
	return u.String(), nil
}

// sent is one receipt. Where the provider wants an answer of its own kind, only the id is known; and after a greeting, which stores
// nothing, not even that.
type sent struct {
	EventID    *string `json:"event_id"`
	ID         *string `json:"id"`
	Duplicate  *bool   `json:"duplicate"`
	Conflict   *bool   `json:"conflict"`
	ReceivedAt *string `json:"received_at"`
}

var sentColumns = []column[sent]{
	{"EVENT ID", func(r sent) string { return known(r.EventID) }},
	{"ID", func(r sent) string { return known(r.ID) }},
	{"RECEIVED", func(r sent) string { return known(r.ReceivedAt) }},
	{"DUPLICATE", func(r sent) string { return known(r.Duplicate) }},
	{"CONFLICT", func(r sent) string { return known(r.Conflict) }},
}

// known is a value in words; "" where it is not known.
func known[T any](v *T) string {
	if v == nil {
		return ""
	}
	return fmt.Sprint(*v)
}

// post sends one delivery after the other and prints the receipts. What is refused is told on standard error.
func (t *target) post(cmd *cobra.Command, asJSON bool, deliveries []*provider.Delivery) error {
	client := &http.Client{Timeout: sendTimeout, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer client.CloseIdleConnections()
	if err := t.checkInstance(cmd.Context(), client); err != nil {
		return err
	}
	var receipts []sent
	refused, greetings, hidden := 0, 0, 0
	for _, d := range deliveries {
		got, err := t.deliver(cmd.Context(), client, d)
		var answer *answerError
		if errors.As(err, &answer) {
			refused++
			fmt.Fprintln(cmd.ErrOrStderr(), "postern:", plain(t.refusal(answer)))
			continue
		}
		if err != nil {
			return err
		}
		receipts = append(receipts, got...)
		switch {
		case len(got) > 0 && got[0].ID == nil:
			greetings++
		case len(got) > 0 && got[0].EventID == nil:
			hidden++
		}
	}
	out := &sink[sent]{out: cmd.OutOrStdout(), json: asJSON, columns: sentColumns}
	if err := errors.Join(out.add(receipts), out.end()); err != nil {
		return err
	}
	t.remark(cmd.ErrOrStderr(), len(deliveries)-refused, greetings, hidden)
	if refused > 0 {
		return errReported
	}
	return nil
}

// checkInstance returns an error where another process has the port of the instance: it would store what is sent.
func (t *target) checkInstance(ctx context.Context, client *http.Client) error {
	if t.instance == nil || t.instance.ID == "" {
		return nil
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.instance.IngestURL+"/healthz", nil)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("send: %w; is the gateway running there?", err)
	}
	return errors.Join(checkResponder(t.instance, res), res.Body.Close())
}

// remark says what receipts do not.
func (t *target) remark(w io.Writer, accepted, greetings, hidden int) {
	if greetings > 0 {
		fmt.Fprintf(w, "postern: %s answered; a greeting is no event, and nothing is stored\n", counted(greetings, "greeting"))
	}
	if hidden > 0 {
		fmt.Fprintf(w, "postern: %s is answered in its own way, so only the ids are known: see postern events show ID\n", t.provider)
	}
	if t.tampered && accepted > 0 {
		fmt.Fprintf(w, "postern: accepted: what was changed is not signed by %s (see postern providers show %s)\n", t.provider, t.provider)
	}
}

// refusal says what became of a delivery that was not taken.
func (t *target) refusal(answer *answerError) string {
	if t.tampered && strings.HasPrefix(answer.status, "401") {
		return "refused with " + answer.status + ", as it should be: the body is not what was signed. A moment later `postern rejections list` shows it with the reason."
	}
	return answer.Error()
}

// answerError is an answer other than 2xx.
type answerError struct {
	status string
	detail string
}

func (e *answerError) Error() string { return "refused with " + e.status + ": " + e.detail }

func (t *target) deliver(ctx context.Context, client *http.Client, d *provider.Delivery) ([]sent, error) {
	address := t.url
	if d.Query != "" {
		address += "?" + d.Query
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(d.Body))
	if err != nil {
		return nil, err
	}
	req.Header = d.Header.Clone()
	res, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("send: %w; is the gateway running there?", err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("read answer: %w", err)
	}
	if res.StatusCode/100 != 2 {
		return nil, &answerError{status: res.Status, detail: problemText(body)}
	}
	return readReceipts(res.Header, body)
}

// problemText is what an RFC 9457 problem says, else the beginning of whatever came.
func problemText(body []byte) string {
	var p struct{ Title, Detail string }
	if json.Unmarshal(body, &p) == nil && p.Title != "" {
		return strings.TrimSpace(p.Title + ". " + p.Detail)
	}
	return string(body[:min(len(body), 300)])
}

// readReceipts reads one receipt or a list of them. Where the provider wants an answer of its own kind, the ids of what was stored
// are in a header; which is empty for a greeting: that stores nothing.
func readReceipts(h http.Header, body []byte) ([]sent, error) {
	var many []sent
	if json.Unmarshal(body, &many) == nil && len(many) > 0 {
		return whole(many), nil
	}
	var one sent
	if json.Unmarshal(body, &one) == nil && one.ID != nil {
		return whole([]sent{one}), nil
	}
	ids, ours := h["Postern-Event"]
	switch {
	case !ours:
		return nil, fmt.Errorf("read receipt: %.100q is none: is that a Postern gateway?", body)
	case h.Get("Postern-Event") == "":
		return []sent{{}}, nil
	}
	for _, id := range strings.Split(strings.Join(ids, ","), ",") {
		id = strings.TrimSpace(id)
		many = append(many, sent{ID: &id})
	}
	return many, nil
}

// whole completes receipts: a gateway leaves out what is false.
func whole(receipts []sent) []sent {
	for i := range receipts {
		for _, flag := range []**bool{&receipts[i].Duplicate, &receipts[i].Conflict} {
			if *flag == nil {
				*flag = new(bool)
			}
		}
	}
	return receipts
}
