-- Copies the states of all objects into a table of your own, in a schema of Postern's database, and
-- follows their changes: psql -f feed.sql, as a login with the role postern_reader that owns the
-- schema app (CREATE SCHEMA app AUTHORIZATION your_login).
CREATE TABLE IF NOT EXISTS app.feed (reader text PRIMARY KEY, epoch text NOT NULL, number bigint NOT NULL);
CREATE TABLE IF NOT EXISTS app.copies (source text, account text, object_type text, object_id text, state jsonb,
  PRIMARY KEY (source, account, object_type, object_id));
INSERT INTO app.feed VALUES ('copies', '', 0) ON CONFLICT DO NOTHING;

DO $$
DECLARE place app.feed; mirrored mirror.change_feed;
BEGIN
  SELECT * INTO place FROM app.feed WHERE reader = 'copies' FOR UPDATE; -- a second worker waits here
  SELECT * INTO mirrored FROM mirror.change_feed;
  IF (place.number <= (mirrored.valid_up_to ->> place.epoch)::bigint) IS NOT TRUE THEN
    DELETE FROM app.copies; -- the first time, or after a restore: start again
    place.number := 0;
  END IF;
  WITH page AS MATERIALIZED (
    SELECT c.* FROM mirror.changes c WHERE c.number > place.number ORDER BY c.number LIMIT 1000
  ), written AS ( -- the state is null if it was redacted: the copy loses it too
    INSERT INTO app.copies SELECT source, account, object_type, object_id, o.state
    FROM page JOIN mirror.objects o USING (source, account, object_type, object_id)
    ON CONFLICT (source, account, object_type, object_id) DO UPDATE SET state = excluded.state
  )
  UPDATE app.feed SET epoch = mirrored.epoch, number = coalesce((SELECT max(number) FROM page), place.number)
  WHERE reader = 'copies';
END $$ \watch 1
