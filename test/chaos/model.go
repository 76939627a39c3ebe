package main

import (
	"errors"
	"fmt"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/versioning"
)

// model is the result of the version rule for the log. It does not depend on the order in which
// events are applied.
type model struct {
	rows map[versioning.Key]*versioning.Row
	// final has the outcomes that do not depend on the order.
	final map[int64]string
}

// object has the compared columns of a row of the mirror.
type object struct {
	key                versioning.Key
	version            versioning.Version
	rank               int16
	hash               versioning.Hash
	deleted, ambiguous bool
}

func newModel() *model {
	return &model{rows: map[versioning.Key]*versioning.Row{}, final: map[int64]string{}}
}

func (m *model) apply(endpoint config.Endpoint, r *events.Record) error {
	if endpoint.Provider == nil {
		return fmt.Errorf("event %d has source number %d, which is not configured", r.ID, r.Source)
	}
	o, err := endpoint.Provider.Observe(endpoint.Source, &r.StoredEvent)
	if err == nil && o.Ignored != "" {
		m.final[r.ID] = "ignored"
		return nil
	}
	var in versioning.Input
	if err == nil {
		in, err = versioning.InputFromObservation(o, r.ReceivedAt)
	}
	if dead := (*provider.Dead)(nil); errors.As(err, &dead) {
		m.final[r.ID] = "dead"
		return nil
	}
	if err != nil {
		return fmt.Errorf("event %d: %w", r.ID, err)
	}
	key := versioning.Key{Source: r.Source, Account: o.Account, Type: o.ObjectType, ID: o.ObjectID}
	row := m.rows[key]
	if row == nil {
		fresh := versioning.NewRow()
		row = &fresh
		m.rows[key] = row
	}
	versioning.Apply(row, in)
	row.State.JSON = nil // the hashes are sufficient, and a million states would need too much memory
	for i := range row.TiedStates {
		row.TiedStates[i].State.JSON = nil
	}
	return nil
}
