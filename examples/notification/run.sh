#!/usr/bin/env bash
# Five hours of invoices, with an hourly notification to sales: windows overlap, an invoice comes
# late, Postern is killed in the middle of two notifications and is down for two hours, and at the
# end the rule gets another version. The hours pass only on the database's clock.
. "$(dirname "$0")/../common.sh"
build ./cmd/postern ./examples/sink
export INVOICING_TOKEN=token-of-invoicing-0123456789
cp "$example/postern.yaml" "$work/postern.yaml"
config=$work/postern.yaml

serve sink "$bin/sink" -listen 127.0.0.1:0
export SINK_URL=$url
start_postern

first=$(($(date +%s) / 3600 * 3600 + 3600)) # the full hour at which the example starts

# clock HOUR SECONDS sets the database's clock to that time after the start.
clock() { set_clock $((first + $1 * 3600 + $2)); }

# invoice NUMBER HOUR MINUTE pushes an invoice that the invoicing service created at that time.
invoice() {
  push invoicing "$INVOICING_TOKEN" invoice "$1" \
    "{\"id\": \"$1\", \"total\": \"$1.00\", \"created\": $((first + $2 * 3600 + $3 * 60))}"
  echo "invoice $1, made at $2:$3"
}

# notified NUMBER waits until sales got that many notifications and no effect is open.
notified() {
  eventually all_done "$1"
  curl -fsS "$SINK_URL/-/did" | sed 's/^/notified: /'
}

say "hour 0: three invoices"
clock 0 1800
for n in 1 2 3; do invoice $n 0 1$n; done
clock 1 5
notified 3

say "hour 1: two more, and one of 0:59 is delivered late; the window has three hours, so it includes it"
for n in 4 5; do invoice $n 1 1$n; done
invoice 6 0 59
say "the notifications of 4 and 5 get no response: one before it is sent, one after it"
hangs hangs /mail '"4"'
hangs acts_hangs /mail '"5"'
clock 2 5
in_the_middle() { hanging 2 && [[ $(effects "done") == 4 ]]; }
eventually in_the_middle
kill_postern
start_postern
clock 2 90 # after the leases of the dead process
notified 6

say "hour 2: one more; then Postern is down for two hours, and afterwards both windows are evaluated"
invoice 7 2 17
clock 4 5 # before the kill, which ends its private database too
kill_postern
start_postern
clock 4 65 # after the leases of the dead process
notified 7

say "hour 4: one more, and a new rule_version: the next window notifies again on purpose"
sed -i.before 's/rule_version: 1/rule_version: 2/' "$config"
kill -HUP "$postern_pid"
eventually grep -q 'configuration reloaded' "$work/postern.log"
invoice 8 4 18
clock 5 5
notified 9

say "the ledger"
postern effects list
curl -fsS "$SINK_URL/-/did" >"$work/did"
[[ $(wc -l <"$work/did") == 8 && $(grep -c '^1 ' "$work/did") == 7 &&
  $(grep -c '^2 .*"invoice":"7"' "$work/did") == 1 ]] ||
  die "expected one notification for each of eight invoices, and a second one for the seventh"
