package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

const (
	sendTimeout      = 30 * time.Second
	maxResponseBytes = 1 << 20
)

// sentReceipt is one receipt. If the provider requires its own response format, only the id is
// known. After a handshake, which stores nothing, all fields are empty.
type sentReceipt struct {
	EventID    *string `json:"event_id"`
	ID         *string `json:"id"`
	Duplicate  *bool   `json:"duplicate"`
	Conflict   *bool   `json:"conflict"`
	ReceivedAt *string `json:"received_at"`
	Spooled    bool    `json:"spooled,omitempty"`
}

var sentColumns = []column[sentReceipt]{
	{"EVENT ID", func(r sentReceipt) any { return r.EventID }},
	{"ID", func(r sentReceipt) any { return r.ID }},
	{"RECEIVED", func(r sentReceipt) any { return r.ReceivedAt }},
	{"DUPLICATE", func(r sentReceipt) any { return r.Duplicate }},
	{"CONFLICT", func(r sentReceipt) any { return r.Conflict }},
}

// sendAll sends the deliveries one by one and prints the receipts, also those before an error. It
// prints rejections on standard error.
func (s *sending) sendAll(deliveries []*provider.Delivery) error {
	client := newClient(nil, sendTimeout)
	defer client.CloseIdleConnections()
	if err := s.checkInstance(client); err != nil {
		return err
	}
	var receipts []sentReceipt
	var failure error
	rejected, handshakes, idOnly, spooled := 0, 0, 0, 0
	for _, d := range deliveries {
		got, err := s.sendOne(client, d)
		var response *responseError
		if errors.As(err, &response) {
			rejected++
			fmt.Fprintln(s.errs, "postern:", escapeControl(s.describeRejection(response)))
			continue
		}
		if err != nil {
			failure = err
			break
		}
		receipts = append(receipts, got...)
		switch {
		case len(got) > 0 && got[0].Spooled:
			spooled += len(got)
		case len(got) > 0 && got[0].ID == nil:
			handshakes++
		case len(got) > 0 && got[0].EventID == nil:
			idOnly++
		}
	}
	if failure == nil || len(receipts) > 0 {
		failure = errors.Join(failure, printList(s.call, receipts, sentColumns, ""))
	}
	if failure != nil {
		return failure
	}
	s.printRemarks(len(deliveries)-rejected, handshakes, idOnly, spooled)
	if rejected > 0 {
		return errReported
	}
	return nil
}

// checkInstance returns an error if another process uses the port of the instance, because that
// process would store the deliveries.
func (s *sending) checkInstance(client *http.Client) error {
	if s.instance == nil || s.instance.ID == "" {
		return nil
	}
	req, err := http.NewRequestWithContext(s.ctx, http.MethodGet, s.instance.IngestURL+"/healthz", nil)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("send: %w; is the gateway running at this address?", err)
	}
	return errors.Join(checkResponder(s.instance, res), res.Body.Close())
}

// printRemarks prints what the receipts do not show.
func (s *sending) printRemarks(accepted, handshakes, idOnly, spooled int) {
	if spooled > 0 {
		fmt.Fprintf(s.errs, "postern: stored in the gateway's spool, because PostgreSQL is unavailable: %s; the log "+
			"gets them later\n", countOf(spooled, "event"))
	}
	if handshakes > 0 {
		fmt.Fprintf(s.errs, "postern: %s completed; a handshake is not an event, and nothing is stored\n",
			countOf(handshakes, "handshake"))
	}
	name := s.provider.Name()
	if idOnly > 0 {
		fmt.Fprintf(s.errs, "postern: %s requires its own response format, so only the ids are known: see postern "+
			"events show ID\n", name)
	}
	if s.has("tamper") && accepted > 0 {
		fmt.Fprintf(s.errs, "postern: accepted: %s does not sign the changed part (see postern providers show %s)\n",
			name, name)
	}
}

// describeRejection describes a delivery that was not accepted.
func (s *sending) describeRejection(response *responseError) string {
	if s.has("tamper") && strings.HasPrefix(response.status, "401") {
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

func (s *sending) sendOne(client *http.Client, d *provider.Delivery) ([]sentReceipt, error) {
	address := s.url
	if d.Query != "" {
		address += "?" + d.Query
	}
	req, err := http.NewRequestWithContext(s.ctx, http.MethodPost, address, bytes.NewReader(d.Body))
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
	if json.Unmarshal(body, &one) == nil && (one.ID != nil || one.Spooled) {
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
