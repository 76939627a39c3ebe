-- Copies the states of all objects into a table of your own, in a schema of Postern's database, and
-- follows their changes: psql -f feed.sql, as a login with the role postern_reader that owns the
-- schema app (README.md).
\set ON_ERROR_STOP on
CREATE TABLE IF NOT EXISTS app.feed (reader text PRIMARY KEY, epoch text NOT NULL, number bigint NOT NULL);
CREATE TABLE IF NOT EXISTS app.copies (source text, account text, object_type text, object_id text, state jsonb,
  PRIMARY KEY (source, account, object_type, object_id));
INSERT INTO app.feed VALUES ('copies', '', 0) ON CONFLICT DO NOTHING;

DO $$
DECLARE place app.feed; mirrored mirror.change_feed;
BEGIN
  -- One cursor means one order. So a second worker waits here, and is only a standby.
  SELECT * INTO place FROM app.feed WHERE reader = 'copies' FOR UPDATE;
  SELECT * INTO mirrored FROM mirror.change_feed;
  IF (place.number <= (mirrored.valid_up_to ->> place.epoch)::bigint) IS NOT TRUE THEN
    DELETE FROM app.copies; -- the first time, or after a restore: start again
    place.number := 0;
  END IF;
  WITH page AS MATERIALIZED (
    SELECT c.number, source, account, object_type, object_id, o.deleted, o.state
    FROM (SELECT * FROM mirror.changes WHERE number > place.number ORDER BY number LIMIT 1000) c
      JOIN mirror.objects o USING (source, account, object_type, object_id)
  ), removed AS (
    DELETE FROM app.copies c USING page p WHERE p.deleted AND
      (c.source, c.account, c.object_type, c.object_id) = (p.source, p.account, p.object_type, p.object_id)
  ), written AS ( -- the state is null if it was redacted: the copy loses it too
    INSERT INTO app.copies SELECT source, account, object_type, object_id, state FROM page WHERE NOT deleted
    ON CONFLICT (source, account, object_type, object_id) DO UPDATE SET state = excluded.state
  )
  UPDATE app.feed SET epoch = mirrored.epoch, number = coalesce((SELECT max(number) FROM page), place.number)
  WHERE reader = 'copies';
END $$ \watch 1
