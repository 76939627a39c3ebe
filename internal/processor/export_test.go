package processor

import (
	"bytes"
	"context"
	"encoding/json"

	"github.com/jackc/pgx/v5/pgxpool"
)

// AuditPass returns the auditor of a processor as a function that makes one pass.
func AuditPass(p *Processor) func(context.Context) error {
	return (&auditor{p: p}).pass
}

// ReadBacklog reads what is left to do into the metrics.
func ReadBacklog(ctx context.Context, p *Processor) { p.readBacklog(ctx) }

// Maintained does once what Maintain does every minute.
func Maintained(ctx context.Context, p *Processor, keeper *pgxpool.Pool) error {
	return p.maintain(ctx, keeper)
}

// Envelopes are the body of a change as it goes out and as encoding/json alone would write it.
func Envelopes(state json.RawMessage, omitted bool, id string) (got, want []byte, err error) {
	e := envelope{Schema: 1, EventID: "1", Source: "sim", ObjectType: "thing", ObjectID: id, Revision: 2, State: state, StateOmitted: omitted}
	if got, err = e.encode(); err != nil {
		return nil, nil, err
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err = enc.Encode(e)
	return got, bytes.TrimRight(b.Bytes(), "\n"), err
}
