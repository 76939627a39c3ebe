#!/usr/bin/env bash
# Imports 250 invoices in five pages and sends a reminder for each of the 50 that are overdue,
# except for one that is paid meanwhile. Postern is killed on page 3 and in the middle of each step.
# After the restart there is no invoice and no mail twice.
. "$(dirname "$0")/../common.sh"
build ./cmd/postern ./examples/sink ./examples/invoices/billing
export BILLING_SECRET=secret-of-the-webhooks-0123456789 BILLING_API_KEY=key-of-the-billing-api

say "start a billing service that does not answer the first request for page 3 and for one invoice, and a mail" \
  "server that accepts some mails without a reply"
serve billing "$bin/billing" -listen 127.0.0.1:0 -hold '/invoices?after=in_0100,/invoices/in_0010'
export BILLING_API=$url
serve sink "$bin/sink" -listen 127.0.0.1:0 -smtp 127.0.0.1:0
export SINK_URL=$url
SMTP_PORT=$(sed -n 's/^takes mail on .*://p' "$work/sink.log")
export SMTP_PORT
curl -fsS -X POST "$SINK_URL/-/faults?fault=acts_drops&path=/smtp&times=3"
curl -fsS -X POST "$SINK_URL/-/faults?fault=acts_hangs&path=/smtp&times=2"
start_postern

say "import up to page 3"
postern reconcile billing --type invoice --no-wait
in_the_middle() {
  hanging 2 && [[ $(curl -fsS "$BILLING_API/-/holding") == 2 && $(curl -fsS "$SINK_URL/-/did" | wc -l) == 19 ]]
}
eventually in_the_middle
kill_postern
echo "$(curl -fsS "$SINK_URL/-/did" | wc -l) mails were sent"

say "restart: the import continues, and the mails too, when the lease of the dead process is over (50 seconds)"
start_postern
postern runs watch 1
eventually all_done 50

say "import everything once more"
postern reconcile billing --type invoice --full
all_done 50 || die "there are other reminders than the 50"

say "invoices and mails"
postern objects list --source billing --limit 1000 | tail -n +2 | awk '{print $4}' | sort >"$work/invoices"
curl -fsS "$SINK_URL/-/did" >"$work/did"
echo "$(wc -l <"$work/invoices") invoices, $(sort -u "$work/invoices" | wc -l) different ones"
echo "$(awk '{n += $1} END {print n}' "$work/did") mails, $(wc -l <"$work/did") different ones"
[[ $(wc -l <"$work/invoices") == 250 && $(sort -u "$work/invoices" | wc -l) == 250 ]] ||
  die "not 250 invoices, each once"
[[ $(wc -l <"$work/did") == 49 && $(grep -vc '^1 ' "$work/did") == 0 ]] || die "not 49 mails, each once"
grep -q in_0250 "$work/did" && die "there is a reminder for the invoice that was paid"
postern effects show "$(postern effects list --object in_0250 | awk 'NR == 2 {print $1}')"
