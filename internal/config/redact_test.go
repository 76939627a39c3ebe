package config_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/config"
)

func TestRedactURL(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"postgres://u:pw@h:5432/db?sslmode=require": "postgres://u:[hidden]@h:5432/db?sslmode=require",
		"postgres://u@h/db":                         "postgres://u@h/db",
		"postgres://h/db":                           "postgres://h/db",
		"postgres://u:p@w/x@h/db":                   "postgres://u:[hidden]@h/db",
		"postgres://u:pw@h1:1,h2:2/db":              "postgres://u:[hidden]@h1:1,h2:2/db",
		"postgres:///db?user=u&password=pw&x=1":     "postgres:///db?user=u&password=[hidden]&x=1",
		"host=h user=u password='p w' dbname=d":     "host=h user=u password=[hidden] dbname=d",
		"host=h sslpassword=pw":                     "host=h sslpassword=[hidden]",
		"nats://u:pw@a:4222,nats://token@b:4222,c":  "nats://u:[hidden]@a:4222,nats://[hidden]@b:4222,c",
		"": "",
	} {
		if got := config.RedactURL(in); got != want {
			t.Errorf("RedactURL(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestNoWayOfPrintingShowsASecret(t *testing.T) {
	t.Parallel()
	c, err := config.Parse([]byte("database: {url: 'postgres://u:s3cret@h/d'}\nnats: {url: 'nats://s3cret@h'}\nsources: {a: {provider: stripe, secrets: [{name: n, value: whsec_s3cret_of_a_test}], api: {key: {value: s3cret}}}}\n"), environment())
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for _, log := range []*slog.Logger{slog.New(slog.NewTextHandler(&out, nil)), slog.New(slog.NewJSONHandler(&out, nil))} {
		log.Info("config", "config", c, "database", c.Database, "source", c.Sources["a"], "secret", c.Sources["a"].Secrets[0],
			"api", c.Endpoints()[0].API, "key", c.Sources["a"].API.Key)
	}
	fmt.Fprint(&out, c)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		fmt.Fprintf(&out, verb, c.Database)
		fmt.Fprintf(&out, verb, *c.Sources["a"])
		fmt.Fprintf(&out, verb, c.Sources["a"].Secrets)
		fmt.Fprintf(&out, verb, c.Sources["a"].API)
		fmt.Fprintf(&out, verb, *c.Endpoints()[0].API)
	}
	b, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	out.Write(b)
	if strings.Contains(out.String(), "s3cret") {
		t.Fatal(out.String())
	}
	for _, bytesOfSecret := range []string{"115 51 99", "0x73, 0x33", fmt.Sprintf("%x", "s3cret")} {
		if strings.Contains(out.String(), bytesOfSecret) {
			t.Fatalf("the secret's bytes are shown: %s", out.String())
		}
	}
}
