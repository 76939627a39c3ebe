#!/usr/bin/env bash
# Five users get one welcome mail each. One got it from an old system. Postern is killed while it
# asks the mail service about one user, and before and after the mails of two others.
. "$(dirname "$0")/../common.sh"
build ./cmd/postern ./examples/sink
export APP_TOKEN=token-of-the-app-0123456789
cp "$example/postern.yaml" "$work/postern.yaml"
config=$work/postern.yaml

say "start a mail service without idempotency keys, to which an old system has sent the mail of ada"
serve sink "$bin/sink" -listen 127.0.0.1:0 -ignores mail
export SINK_URL=$url
curl -fsS "$SINK_URL/mail/messages" -d '{"template":"welcome","to":"ada@example.com"}'
start_postern

hangs hangs /mail 'to=grace'
hangs hangs /mail '"barbara@'
hangs acts_hangs /mail '"edsger@'

push_users() {
  for name in ada grace barbara edsger tony; do
    curl -fsS "$(instance ingest_url)/webhooks/app" -o /dev/null -H "Authorization: Bearer $APP_TOKEN" \
      -H 'Content-Type: application/cloudevents+json' \
      -d "{\"specversion\": \"1.0\", \"id\": \"$name-new\", \"source\": \"/users\", \"type\": \"com.example.user.new\",
           \"subject\": \"$name\", \"time\": \"2026-11-22T10:15:00Z\",
           \"data\": {\"id\": \"$name\", \"email\": \"$name@example.com\"}}"
  done
}
say "five users are new: grace's check gets no response, barbara's mail neither, and edsger's is sent without one"
push_users
in_the_middle() { hanging 3 && [[ $(effects "done") == 2 ]]; }
eventually in_the_middle
kill_postern

say "restart: this process continues the effects when the leases of the dead process are over (50 seconds)"
start_postern
eventually all_done 5

say "the app pushes its users again"
push_users
all_done 5 || die "there are other effects than the five"

say "the rule gets another version, and all effects of the first one happen again: each mail is found"
sed -i.before 's/rule_version: 1/rule_version: 2/' "$config"
kill -HUP "$postern_pid"
eventually grep -q 'configuration reloaded' "$work/postern.log"
postern replay --source app --mode force --yes --reason "check that the mail service is asked"
postern runs approve 1 --reason "the mail service is asked first"
eventually all_done 10

say "mails, with the number of times"
curl -fsS "$SINK_URL/-/did" | tee "$work/did"
[[ $(wc -l <"$work/did") == 5 && $(grep -vc '^1 ' "$work/did") == 0 ]] || die "not five mails, each once"

say "the user who had the mail already"
postern effects show 1
