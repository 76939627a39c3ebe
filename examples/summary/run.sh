#!/usr/bin/env bash
# Two weeks of invoices, with a summary for each customer on Mondays. Postern is killed in the
# middle of two mails, and is down on the second Monday. A replay of all events in the third week
# changes nothing. The weeks pass only on the database's clock.
. "$(dirname "$0")/../common.sh"
build ./cmd/postern ./examples/sink
export SHOP_TOKEN=token-of-the-shop-0123456789

serve sink "$bin/sink" -listen 127.0.0.1:0
export SINK_URL=$url
start_postern

now=$(date +%s)
monday=$((now + 604800 - (now - 378000) % 604800)) # the next one, at 9:00 UTC; 378000 was the first

customer() { push shop "$SHOP_TOKEN" customer "$1" "{\"id\": \"$1\", \"email\": \"$1@example.com\"}"; }
invoice() { push shop "$SHOP_TOKEN" invoice "$1" "{\"id\": \"$1\", \"customer\": \"$2\", \"total\": \"$3\"}"; }

say "week 1: three customers; ada has three invoices, grace one, edsger none"
set_clock $((monday - 3600))
for name in ada grace edsger; do customer $name; done
invoice in_1 ada 12.50
invoice in_2 ada 7.50
invoice in_3 ada 20.25
invoice in_4 grace 5.00

say "Monday: the mail to ada gets no response before it is sent, that to grace after it"
hangs hangs /mail '"ada@'
hangs acts_hangs /mail '"grace@'
set_clock $((monday + 5))
eventually hanging 2
kill_postern
start_postern
set_clock $((monday + 90)) # after the leases of the dead process
eventually all_done 2

say "week 2: an invoice of grace, a minute too late; then Postern is down on the next Monday"
invoice in_5 grace 6.00
set_clock $((monday + 604800 + 3600)) # before the kill, which ends its private database too
kill_postern
start_postern
set_clock $((monday + 604800 + 3700)) # after the leases of the dead process
eventually all_done 3

say "week 3: all events are replayed; on Monday there is nothing to report"
postern replay --source shop --mode missing --yes --reason "check that no summary is sent twice"
set_clock $((monday + 1209600 + 5))
evaluated() {
  [[ $(psql -qXAt "$(instance database_url)" -c "SELECT window_end IS NULL AND
    decided_at = to_timestamp($((monday + 1209600))) FROM postern.effect_windows") == t ]]
}
eventually evaluated
all_done 3 || die "there are other effects than the three"

say "summaries, with the number of times"
curl -fsS "$SINK_URL/-/did" | tee "$work/did"
[[ $(wc -l <"$work/did") == 3 && $(grep -vc '^1 ' "$work/did") == 0 ]] || die "not three summaries, each once"
grep -q '"count":3,.*"to":"ada@example.com","total":40.25' "$work/did" || die "the summary of ada is wrong"
grep -q '"count":1,.*"in_5".*"to":"grace@example.com","total":6' "$work/did" || die "the late invoice is missing"
