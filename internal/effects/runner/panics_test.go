package runner_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/testkit/sink"
)

// A value that no mail can be made of makes its own effect wait for a person, and no other one.
func TestANameThatIsNoText(t *testing.T) {
	t.Parallel()
	b, mails := post(t, "")
	mail := b.rules.Named("follow").Steps[0].Do.Mail
	mail.Cc = nil
	var err error
	if mail.To[0], err = rules.CompileAddress("{{ new.to }}", rules.Scope{Change: true, Steps: map[string][]string{}}); err != nil {
		t.Fatal(err)
	}
	b.about(t, 1, `{"to": "=?utf-8?b?`+strings.Repeat("gICA", 20)+`?= <jo@example.com>"}`)
	b.about(t, 2, `{"to": "=?utf-8?b?QYCA`+strings.Repeat("gICA", 20)+`?= <jo@example.com>"}`)
	b.about(t, 3, `{"to": "jo@example.com"}`)
	b.run(t, "a", b.pool)
	if diff := cmp.Diff(map[string]int{"review": 2, "done": 1}, b.settled(t)); diff != "" || len(mails.Taken()) != 1 {
		t.Errorf("%d taken; %s", len(mails.Taken()), diff)
	}
	if v := b.show(t); !strings.Contains(v.Reason, "mail.to") || !strings.Contains(v.Reason, "no valid UTF-8") {
		t.Error(v.Reason)
	}
}

// An effect that panics, be it before its call or with it, waits for a person, and the process and its other effects go on.
func TestAPanicIsOneEffects(t *testing.T) {
	t.Parallel()
	t.Run("before", func(t *testing.T) {
		t.Parallel()
		b, mails := post(t, "")
		b.plan(t, 1, panicking)
		b.rules.Named("follow").Steps[0].Do.Mail.Subject = nil
		b.panics(t)
		if len(mails.Taken()) != 0 || len(b.show(t).Steps) != 0 {
			t.Errorf("%+v", b.show(t))
		}
	})
	t.Run("with a call", func(t *testing.T) {
		t.Parallel()
		b := attended(t, `[{name: send, to: sink, path: "/mail", once: true, timeout: 10ms, check: {path: "/did", done: answer.status == 200, settles: 10ms}}]`)
		b.plan(t, 1, panicking)
		b.faulty("/mail", slices.Repeat([]sink.Fault{sink.FailsFirst}, panicking)...)
		b.rules.Named("follow").Steps[0].Check.Done = nil
		b.panics(t)
		if s := b.show(t).Steps[0]; s.State != effects.Unknown {
			t.Errorf("%+v", s)
		}
	})
}

// panicking is how many effects panic: more than may be under way at once.
const panicking = 3

// panics has all effects panic, each for itself.
func (b *bundle) panics(t *testing.T) {
	t.Helper()
	for i := range b.reach {
		b.reach[i].Concurrency = 1
	}
	b.run(t, "a", b.pool)
	if got := b.settled(t); got["review"] != panicking || !strings.Contains(b.show(t).Reason, "panic") {
		t.Fatal(got, b.show(t).Reason)
	}
}
