package ingest

import (
	"encoding/json"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
)

// timeFormat is RFC 3339 in UTC with microseconds.
const timeFormat = "2006-01-02T15:04:05.000000Z07:00"

// receiptSize is the approximate size of a receipt in bytes.
const receiptSize = 160

// receiptsBody returns the receipt, or a list of receipts if the delivery had several events or was
// a list.
func receiptsBody(receipts []events.Receipt, list bool) []byte {
	body := make([]byte, 0, receiptSize*len(receipts)+3)
	if len(receipts) == 1 && !list {
		body = appendReceipt(body, receipts[0])
	} else {
		body = append(body, '[')
		for i, r := range receipts {
			if i > 0 {
				body = append(body, ',')
			}
			body = appendReceipt(body, r)
		}
		body = append(body, ']')
	}
	return append(body, '\n')
}

// spooledReceipt says that an event is stored durably but is not in the log yet, so it has no event
// id of Postern.
type spooledReceipt struct {
	EventID string `json:"event_id"`
	Spooled bool   `json:"spooled"`
}

// spooledBody returns the receipt of a spooled delivery, or the list of them.
func spooledBody(evs []provider.Event, list bool) []byte {
	receipts := make([]spooledReceipt, len(evs))
	for i, e := range evs {
		receipts[i] = spooledReceipt{EventID: events.SanitizeText(e.Key), Spooled: true}
	}
	var body []byte
	var err error
	if len(receipts) == 1 && !list {
		body, err = json.Marshal(receipts[0])
	} else {
		body, err = json.Marshal(receipts)
	}
	if err != nil {
		return []byte("{}\n") // strings and booleans always marshal
	}
	return append(body, '\n')
}
