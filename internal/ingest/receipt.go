package ingest

import (
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
)

// timeFormat is RFC 3339 in UTC with microseconds.
const timeFormat = "2006-01-02T15:04:05.000000Z07:00"

// receiptSize is about how many bytes a receipt takes.
const receiptSize = 160

// receiptsReply is the receipt, or the list of receipts where the delivery carried many events.
func receiptsReply(receipts []events.Receipt) *provider.Reply {
	body := make([]byte, 0, receiptSize*len(receipts)+3)
	if len(receipts) == 1 {
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
	return &provider.Reply{ContentType: "application/json", Body: append(body, '\n')}
}
