-- What reconciliation has proven.
-- Locks: none on what is there.
-- +goose Up
CREATE TABLE watermarks (
  source  int         NOT NULL REFERENCES sources,
  account text        NOT NULL,
  what    text        NOT NULL, -- events; or 'run N', what that run has read so far
  since   timestamptz NOT NULL,
  until   timestamptz NOT NULL,
  run     bigint      NOT NULL,
  at      timestamptz NOT NULL,
  PRIMARY KEY (source, account, what)
) WITH (fillfactor = 50);
COMMENT ON TABLE watermarks IS 'from when until when, on the provider''s clock, something of an account is proven complete: what the provider has told lies in the log and has its outcome';
ALTER TABLE watermarks OWNER TO postern_maintenance;
GRANT SELECT, INSERT, UPDATE, DELETE ON watermarks TO postern_processor;
GRANT SELECT ON watermarks TO postern_operator;
