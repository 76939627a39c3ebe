-- Copies the states of all objects into a table of your own, in a schema of Postern's database, and
-- follows their changes: psql -f feed.sql, as a login with the role postern_reader.
CREATE TABLE IF NOT EXISTS feed (epoch text NOT NULL, number bigint NOT NULL);
CREATE TABLE IF NOT EXISTS copies (source text, account text, object_type text, object_id text, state jsonb,
  PRIMARY KEY (source, account, object_type, object_id));
INSERT INTO feed SELECT '', 0 WHERE NOT EXISTS (SELECT FROM feed);

DO $$
DECLARE place feed; current text;
BEGIN
  SELECT * INTO place FROM feed FOR UPDATE; -- a second worker waits here
  SELECT epoch INTO current FROM mirror.change_feed;
  IF place.epoch <> current THEN -- the first time, or after a restore or failover: start again
    DELETE FROM copies;
    place.number := 0;
    UPDATE feed SET epoch = current, number = 0;
  END IF;
  WITH page AS MATERIALIZED (
    SELECT c.* FROM mirror.changes c WHERE c.number > place.number ORDER BY c.number LIMIT 1000
  ), written AS ( -- the state is null if it was redacted: the copy loses it too
    INSERT INTO copies SELECT source, account, object_type, object_id, o.state
    FROM page JOIN mirror.objects o USING (source, account, object_type, object_id)
    ON CONFLICT (source, account, object_type, object_id) DO UPDATE SET state = excluded.state
  )
  UPDATE feed SET number = (SELECT max(number) FROM page) WHERE EXISTS (SELECT FROM page);
END $$ \watch 1
