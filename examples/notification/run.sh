#!/usr/bin/env bash
# Five hours of invoices, of which sales is told by the hour: windows overlap, an invoice comes late, nobody is there for two hours, and in the end the rule has another version. The hours pass on the database's clock alone.
. "$(dirname "$0")/../common.sh"
build ./cmd/postern ./examples/sink
export INVOICING_TOKEN=token-of-invoicing-0123456789
cp "$example/postern.yaml" "$work/postern.yaml"
config=$work/postern.yaml

serve sink "$bin/sink" -listen 127.0.0.1:0
export SINK_URL=$url
start_postern

first=$(($(date +%s) / 3600 * 3600 + 3600)) # the full hour at which the story begins

# clock HOUR SECONDS puts the database's clock to so long after the beginning. It is what decides when a window is over.
clock() {
  local ahead=$((first + $1 * 3600 + $2 - $(date +%s)))
  psql -qX "$(instance database_url)" -c "CREATE OR REPLACE FUNCTION postern.clock_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS \$\$SELECT clock_timestamp() + interval '$ahead seconds'\$\$"
}

# invoice NUMBER HOUR MINUTE has the invoicing service push an invoice that was made then.
invoice() {
  curl -fsS "$(instance ingest_url)/webhooks/invoicing" -o /dev/null -H "Authorization: Bearer $INVOICING_TOKEN" -H 'Content-Type: application/cloudevents+json' \
    -d "{\"specversion\": \"1.0\", \"id\": \"$1-made\", \"source\": \"/invoices\", \"type\": \"com.example.invoice.made\", \"subject\": \"$1\", \"time\": \"$(date -u +%Y-%m-%dT%H:%M:%SZ)\",
         \"data\": {\"id\": \"$1\", \"total\": \"$1.00\", \"created\": $((first + $2 * 3600 + $3 * 60))}}"
  eventually mirrored "$1" # what a window sees is what is in the mirror by then
  echo "invoice $1, made at $2:$3"
}

mirrored() { postern objects show invoicing invoice "$1" >"$work/shown" 2>&1; }

# told waits until sales was told so many times, and no effect is left.
told() {
  eventually all_done "$1"
  curl -fsS "$SINK_URL/-/did" | sed 's/^/told /'
}

say "in hour 0 three invoices are made"
clock 0 1800
for n in 1 2 3; do invoice $n 0 1$n; done
clock 1 5
told 3

say "in hour 1 there are two more, and one of 0:59 is delivered late; the window is of three hours, so it is seen"
for n in 4 5; do invoice $n 1 1$n; done
invoice 6 0 59
clock 2 5
told 6

say "in hour 2 there is one more; then nobody is there for two hours, and both windows are made up for"
invoice 7 2 17
clock 4 5 # and not after the kill, which ends the database of its own as well
kill_postern
start_postern
clock 4 65 # when the time is over of whatever the dead process may have taken
told 7

say "in hour 4 there is one more, and the rule gets another version, since sales wants another mail: what the next window sees is told again, on purpose"
sed -i.before 's/rule_version: 1/rule_version: 2/' "$config"
kill -HUP "$postern_pid"
eventually grep -q 'configuration reloaded' "$work/postern.log"
invoice 8 4 18
clock 5 5
told 9

say "the ledger"
postern effects list
curl -fsS "$SINK_URL/-/did" >"$work/did"
[[ $(wc -l <"$work/did") == 8 && $(grep -c '^1 ' "$work/did") == 7 && $(grep -c '^2 .*"invoice":"7"' "$work/did") == 1 ]] || die "not eight invoices, each told once, but the seventh, once for each version"
