package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	mails "github.com/postern-gateway/postern/internal/testkit/sink"
)

// A test is sent as alerts are, and says whether it was taken.
func TestNotifyTest(t *testing.T) {
	t.Parallel()
	b, server := setup(t), mails.NewMails(t)
	file := filepath.Join(t.TempDir(), "postern.yaml")
	text := fmt.Sprintf(`
destinations:
  post: {smtp: {host: 127.0.0.1, port: %d, tls: none, from: postern@shop.example}, allow: [127.0.0.1]}
  dead: {url: "http://127.0.0.1:1", allow: [127.0.0.1], key: {value: key-of-dead}}
notify:
  oncall: {to: post, mail: jo@example.com}
  nobody: {to: dead}
`, server.Port)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	b.run(t, "notify", "test", "oncall", "--config", file).want(t, 0, "Sent to post.", "")
	b.run(t, "notify", "test", "nobody", "--config", file).want(t, 1, "", "destination dead: ")
	b.run(t, "notify", "test", "someone", "--config", file).want(t, 2, "", "there is no notify.someone in the configuration used here, which has: nobody, oncall")
	if taken := server.Taken(); len(taken) != 1 || !strings.Contains(taken[0].Message, "Subject: Postern: this is a test, and nothing has happened\r\n") {
		t.Errorf("%+v", taken)
	}
}
