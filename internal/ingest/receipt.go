package ingest

import "github.com/postern-gateway/postern/internal/events"

// timeFormat is RFC 3339 in UTC with microseconds.
const timeFormat = "2006-01-02T15:04:05.000000Z07:00"

// receiptSize is about how many bytes a receipt takes.
const receiptSize = 160

// receiptsBody is the receipt, or the list of receipts where the delivery carried many events.
func receiptsBody(receipts []events.Receipt) []byte {
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
	return append(body, '\n')
}
