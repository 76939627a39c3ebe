package ingest

import (
	"encoding/json"
	"strconv"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
)

// receipt is the answer to one event of a delivery.
type receipt struct {
	EventID    string `json:"event_id"`
	ID         string `json:"id"`
	Duplicate  bool   `json:"duplicate"`
	ReceivedAt string `json:"received_at"`
	Conflict   bool   `json:"conflict,omitempty"`
}

// timeFormat is RFC 3339 in UTC with microseconds.
const timeFormat = "2006-01-02T15:04:05.000000Z07:00"

// receiptsReply is the receipt, or the list of receipts where the delivery carried many events.
func receiptsReply(receipts []events.Receipt) (*provider.Reply, error) {
	out := make([]receipt, len(receipts))
	for i, r := range receipts {
		out[i] = receipt{EventID: r.Key, ID: strconv.FormatInt(r.ID, 10), Duplicate: r.Duplicate, Conflict: r.Conflict,
			ReceivedAt: events.Time(r.ID).Format(timeFormat)}
	}
	var body []byte
	var err error
	if len(out) == 1 {
		body, err = json.Marshal(out[0])
	} else {
		body, err = json.Marshal(out)
	}
	if err != nil {
		return nil, err
	}
	return &provider.Reply{ContentType: "application/json", Body: append(body, '\n')}, nil
}
