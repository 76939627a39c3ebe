-- Keeps which connected accounts the provider's API refuses to the source's key since they were disconnected, so that they neither fail each run nor hide how far the others are proven.
-- Locks: none on what is there.
-- +goose Up
CREATE TABLE disconnected (
  source  int         NOT NULL REFERENCES sources,
  account text        NOT NULL, -- as the provider names it
  since   timestamptz NOT NULL,
  at      timestamptz NOT NULL,
  run     bigint      NOT NULL,
  why     text        NOT NULL,
  PRIMARY KEY (source, account)
);
COMMENT ON TABLE disconnected IS 'connected accounts for which the key may not act any more: since when runs have met that, which was the newest and when, and what the API answered; gone once a run finds the account again';
ALTER TABLE disconnected OWNER TO postern_maintenance;
GRANT SELECT, INSERT, UPDATE, DELETE ON disconnected TO postern_processor;
GRANT SELECT ON disconnected TO postern_operator;
