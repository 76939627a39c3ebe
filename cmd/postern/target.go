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
	sendTimeout      = 30 * time.Second
	maxResponseBytes = 1 << 20
)

// target says where `postern send` sends deliveries, and for which source it signs them.
type target struct {
	url    string
	source *provider.Source
	// provider is the provider's name.
	provider string
	// expectRejection is true if the gateway should reject the deliveries.
	expectRejection bool
	// instance is the instance with this address; nil if the address is not from a folder.
	instance *config.Instance
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
func (s *sendFlags) findTarget(c *cli) (*target, error) {
	base, known, in, instanceErr := s.findInstance(c)
	if instanceErr != nil && (s.url == "" || s.secret == "" && s.secretFile == "") {
		return nil, instanceErr
	}
	name, src, err := s.chooseSource(known)
	if err != nil {
		return nil, err
	}
	if src.configured != nil {
		s.isDescribed = src.isDescribed
		s.provider = src.configured
	}
	secret, err := s.findSecret(src.secret, name)
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
	return &target{url: address, instance: in, provider: s.provider.Name(),
		source: &provider.Source{Name: name, Account: account, Accounts: []string{"*"},
			Secrets: []provider.Secret{{Name: "send", Value: secret}}, URL: cmp.Or(src.url, address)}}, nil
}

// findInstance returns the ingest address and the sources of --config or --dir. If both are given,
// the sources are from the configuration and the address from the dev instance. The error matters
// only if the flags are not sufficient.
func (s *sendFlags) findInstance(c *cli) (base string, known map[string]knownSource, in *config.Instance, err error) {
	if c.config == "" {
		in, err := c.readInstanceFile()
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
	cfg, err := config.LoadDev(c.config)
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
	if c.dirGiven {
		in, err = c.readInstanceFile()
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
func (s *sendFlags) chooseSource(known map[string]knownSource) (string, knownSource, error) {
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
		return "", knownSource{}, usagef("several sources are of provider %s: choose one with --source: %s",
			s.provider.Name(), strings.Join(fitting, ", "))
	}
	if src, ok := known[name]; ok && src.provider != s.provider.Name() {
		return "", knownSource{}, usagef("source %s is of provider %s, not %s", name, src.provider, s.provider.Name())
	}
	return name, known[name], nil
}

func (s *sendFlags) findSecret(sourceSecret []byte, source string) ([]byte, error) {
	switch {
	case s.secret != "":
		return []byte(s.secret), nil
	case s.secretFile != "":
		b, err := os.ReadFile(s.secretFile)
		if err != nil {
			return nil, fmt.Errorf("read secret: %w", err)
		}
		return bytes.TrimRight(b, "\r\n"), nil
	case len(sourceSecret) > 0:
		return sourceSecret, nil
	}
	return nil, usagef("the secret of source %s is not known here (a dev instance knows only demo secrets): give it "+
		"with --secret-file FILE, or name the configuration that has it with --config FILE", source)
}

// ingestURL completes an address without a path.
func ingestURL(address, source string) (string, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return "", usagef("%q is not a valid URL: use e.g. http://127.0.0.1:8080", address)
	}
	if strings.Trim(u.Path, "/") == "" {
		u.Path = "/webhooks/" + source
	}
	return u.String(), nil
}

// sentReceipt is one receipt. If the provider requires its own response format, only the id is
// known. After a handshake, which stores nothing, all fields are empty.
type sentReceipt struct {
	EventID    *string `json:"event_id"`
	ID         *string `json:"id"`
	Duplicate  *bool   `json:"duplicate"`
	Conflict   *bool   `json:"conflict"`
	ReceivedAt *string `json:"received_at"`
}

var sentColumns = []column[sentReceipt]{
	{"EVENT ID", func(r sentReceipt) string { return stringOrEmpty(r.EventID) }},
	{"ID", func(r sentReceipt) string { return stringOrEmpty(r.ID) }},
	{"RECEIVED", func(r sentReceipt) string { return stringOrEmpty(r.ReceivedAt) }},
	{"DUPLICATE", func(r sentReceipt) string { return stringOrEmpty(r.Duplicate) }},
	{"CONFLICT", func(r sentReceipt) string { return stringOrEmpty(r.Conflict) }},
}

// stringOrEmpty formats a value; nil becomes "".
func stringOrEmpty[T any](v *T) string {
	if v == nil {
		return ""
	}
	return fmt.Sprint(*v)
}

// sendAll sends the deliveries one by one and prints the receipts. It prints rejections on standard
// error.
func (t *target) sendAll(cmd *cobra.Command, asJSON bool, deliveries []*provider.Delivery) error {
	client := &http.Client{Timeout: sendTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer client.CloseIdleConnections()
	if err := t.checkInstance(cmd.Context(), client); err != nil {
		return err
	}
	var receipts []sentReceipt
	rejected, handshakes, idOnly := 0, 0, 0
	for _, d := range deliveries {
		got, err := t.sendOne(cmd.Context(), client, d)
		var response *responseError
		if errors.As(err, &response) {
			rejected++
			fmt.Fprintln(cmd.ErrOrStderr(), "postern:", escapeControl(t.describeRejection(response)))
			continue
		}
		if err != nil {
			return err
		}
		receipts = append(receipts, got...)
		switch {
		case len(got) > 0 && got[0].ID == nil:
			handshakes++
		case len(got) > 0 && got[0].EventID == nil:
			idOnly++
		}
	}
	out := &listPrinter[sentReceipt]{out: cmd.OutOrStdout(), json: asJSON, columns: sentColumns}
	if err := errors.Join(out.add(receipts), out.end()); err != nil {
		return err
	}
	t.printRemarks(cmd.ErrOrStderr(), len(deliveries)-rejected, handshakes, idOnly)
	if rejected > 0 {
		return errReported
	}
	return nil
}

// checkInstance returns an error if another process uses the port of the instance, because that
// process would store the deliveries.
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
		return fmt.Errorf("send: %w; is the gateway running at this address?", err)
	}
	return errors.Join(checkResponder(t.instance, res), res.Body.Close())
}

// printRemarks prints what the receipts do not show.
func (t *target) printRemarks(w io.Writer, accepted, handshakes, idOnly int) {
	if handshakes > 0 {
		fmt.Fprintf(w, "postern: %s completed; a handshake is not an event, and nothing is stored\n",
			countOf(handshakes, "handshake"))
	}
	if idOnly > 0 {
		fmt.Fprintf(w, "postern: %s requires its own response format, so only the "+
			"ids are known: see postern events show ID\n", t.provider)
	}
	if t.expectRejection && accepted > 0 {
		fmt.Fprintf(w, "postern: accepted: %s does not sign the changed part (see postern providers show %s)\n",
			t.provider, t.provider)
	}
}

// describeRejection describes a delivery that was not accepted.
func (t *target) describeRejection(response *responseError) string {
	if t.expectRejection && strings.HasPrefix(response.status, "401") {
		return "rejected with " + response.status + ", as expected: the signature does not match the body. A moment " +
			"later `postern rejections list` shows it with the reason."
	}
	return response.Error()
}

// responseError is a response with a status other than 2xx.
type responseError struct {
	status string
	detail string
}

func (e *responseError) Error() string { return "rejected with " + e.status + ": " + e.detail }

func (t *target) sendOne(ctx context.Context, client *http.Client, d *provider.Delivery) ([]sentReceipt, error) {
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
		return nil, fmt.Errorf("send: %w; is the gateway running at this address?", err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxResponseBytes))
	if err != nil {
		return nil, fmt.Errorf("read response: %w", err)
	}
	if res.StatusCode/100 != 2 {
		return nil, &responseError{status: res.Status, detail: describeProblem(body)}
	}
	return readReceipts(res.Header, body)
}

// describeProblem returns the text of an RFC 9457 problem, else the beginning of the body.
func describeProblem(body []byte) string {
	var p struct{ Title, Detail string }
	if json.Unmarshal(body, &p) == nil && p.Title != "" {
		return strings.TrimSpace(p.Title + ". " + p.Detail)
	}
	return string(body[:min(len(body), 300)])
}

// readReceipts reads one receipt or a list of them. If the provider requires its own response
// format, a header has the ids of the stored events. The header is empty for a handshake, which
// stores nothing.
func readReceipts(h http.Header, body []byte) ([]sentReceipt, error) {
	var many []sentReceipt
	if json.Unmarshal(body, &many) == nil && len(many) > 0 {
		return completeReceipts(many), nil
	}
	var one sentReceipt
	if json.Unmarshal(body, &one) == nil && one.ID != nil {
		return completeReceipts([]sentReceipt{one}), nil
	}
	ids, isPostern := h["Postern-Event"]
	switch {
	case !isPostern:
		return nil, fmt.Errorf("read receipt: %.100q is not a receipt: is this a Postern gateway?", body)
	case h.Get("Postern-Event") == "":
		return []sentReceipt{{}}, nil
	}
	for _, id := range strings.Split(strings.Join(ids, ","), ",") {
		id = strings.TrimSpace(id)
		many = append(many, sentReceipt{ID: &id})
	}
	return many, nil
}

// completeReceipts sets the fields that a gateway omits because they are false.
func completeReceipts(receipts []sentReceipt) []sentReceipt {
	for i := range receipts {
		for _, flag := range []**bool{&receipts[i].Duplicate, &receipts[i].Conflict} {
			if *flag == nil {
				*flag = new(bool)
			}
		}
	}
	return receipts
}
