#!/usr/bin/env bash
# Stripe sends three updates of a subscription, each twice. The application acts three times,
# although its first response is lost.
. "$(dirname "$0")/../common.sh"
build ./cmd/postern
export STRIPE_SECRET=whsec_signing_secret_of_the_example
APP_SIGNING_SECRET=whsec_$(head -c 32 /dev/urandom | base64 | tr -d '\n')
export APP_SIGNING_SECRET

say "start an application in Python whose first response is lost after it acted"
serve app env APP_LOSES=1 APP_DATABASE="$work/app.db" python3 "$example/app.py"
export APP_URL=$url
start_postern

say "Stripe delivers three updates of a subscription, each twice"
postern send stripe customer.subscription.updated --config "$config" --count 3 --duplicate 1

say "actions of the application"
eventually all_done 3
tail -n +2 "$work/app.log"
[[ $(grep -c '^acted: ' "$work/app.log") == 3 ]] || die "the application did not act three times"
[[ $(grep -c '^seen before: ' "$work/app.log") == 1 ]] ||
  die "the request whose response was lost was not repeated with its webhook-id"

say "a client without the secret calls it"
status=$(curl -s -o /dev/null -w '%{http_code}' -H "webhook-id: 1" -H "webhook-timestamp: $(date +%s)" \
  -H 'webhook-signature: v1,bm90IHRoZSBrZXk=' -d '{}' "$APP_URL")
echo "status $status"
[[ $status == 401 ]] || die "the application accepted it"

say "the ledger"
postern effects list
