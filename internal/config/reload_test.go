package config_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/postern-gateway/postern/internal/config"
)

// files writes files into a folder of the test and returns the folder.
func files(t *testing.T, contents map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range contents {
		write(t, filepath.Join(dir, name), text)
	}
	return dir
}

// withSecretIn is a configuration whose only source has its secret in a file next to it.
func withSecretIn(path string) string {
	return "database: {url: postgres://x}\nsources:\n  a: {provider: stripe, secrets: [{name: n, file: '" + path +
		"'}]}\n"
}

func load(t *testing.T, l *config.Loader) *config.Config {
	t.Helper()
	c, err := l.Load()
	must(t, err)
	return c
}

// changedTwice calls Changed two times; the second call reports a change.
func changedTwice(l *config.Loader) (first, second bool) {
	first = l.Changed()
	return first, l.Changed()
}

// unchanged fails the test if the loader reports a change.
func unchanged(t *testing.T, l *config.Loader, what string) {
	t.Helper()
	if first, second := changedTwice(l); first || second {
		t.Errorf("%s is reported as a change", what)
	}
}

// changed fails the test unless the loader reports a change at the second call, and none after it
// has loaded again.
func changed(t *testing.T, l *config.Loader, what string) {
	t.Helper()
	if first, second := changedTwice(l); first || !second {
		t.Errorf("%s: reported at the first call, when the file may still be changing: %t, at the second: %t", what,
			first, second)
	}
	_, _ = l.Load() // other tests check the errors
	unchanged(t, l, what+", once it was loaded,")
}

func TestLoader_changedFile_isNoticed(t *testing.T) {
	t.Parallel()
	dir := files(t, map[string]string{"secret": "whsec_one_of_a_test\n", "key": "sk_test_old"})
	file, secret, key := filepath.Join(dir, "postern.yaml"), filepath.Join(dir, "secret"), filepath.Join(dir, "key")
	text := strings.Replace(withSecretIn(secret), "stripe,", "stripe, api: {key: {file: '"+key+"'}},", 1)
	write(t, file, text)
	l := config.NewLoader(file, config.ForGateway, nil)
	load(t, l)
	unchanged(t, l, "nothing")
	write(t, file, text+"# a comment\n")
	changed(t, l, "the file")
	write(t, key, "sk_test_new")
	changed(t, l, "the file of an API's key")
	if got := string(load(t, l).Endpoints()[0].API.Key.Value); got != "sk_test_new" {
		t.Errorf("the key is %q", got)
	}
	write(t, secret, "whsec_two_of_a_test\n")
	changed(t, l, "a secret's file")
	if got := string(load(t, l).Endpoints()[0].Source.Secrets[0].Value); got != "whsec_two_of_a_test" {
		t.Errorf("the secret is %q", got)
	}
	must(t, os.Remove(secret))
	changed(t, l, "a secret's file that is gone")
	write(t, secret, "whsec_three_of_a_test")
	changed(t, l, "a secret's file that is there again")
	write(t, file, "sources: [") // the configuration no longer names a secret file
	changed(t, l, "a broken file")
	write(t, file, withSecretIn(secret))
	changed(t, l, "the corrected file")
	write(t, secret, "whsec_four_of_a_test")
	changed(t, l, "a secret's file after all that")
}

// A file that changes at every call is still being written.
func TestLoader_fileStillChanging_isNotReported(t *testing.T) {
	t.Parallel()
	file := filepath.Join(files(t, map[string]string{"postern.yaml": "database: {url: postgres://x}\n"}),
		"postern.yaml")
	l := config.NewLoader(file, config.ForGateway, nil)
	load(t, l)
	for _, text := range []string{"", "database", "database: {url:", "database: {url: postgres://y}"} {
		write(t, file, text)
		if l.Changed() {
			t.Fatalf("reported after %q", text)
		}
	}
	write(t, file, "database: {url: postgres://x}\n") // the previous content
	unchanged(t, l, "a change that was undone")
}

// Kubernetes changes a ConfigMap by replacing a symbolic link in its path.
func TestLoader_swappedLink_isNoticed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	point := func(version, secret string) {
		sub := filepath.Join(dir, version)
		must(t, os.Mkdir(sub, 0o700))
		write(t, filepath.Join(sub, "secret"), secret)
		write(t, filepath.Join(sub, "postern.yaml"), withSecretIn(filepath.Join(dir, "secret")))
		link := filepath.Join(dir, version+".link")
		must(t, errors.Join(os.Symlink(version, link), os.Rename(link, filepath.Join(dir, "data"))))
	}
	for _, name := range []string{"secret", "postern.yaml"} {
		must(t, os.Symlink(filepath.Join("data", name), filepath.Join(dir, name)))
	}
	point("v1", "whsec_one_of_a_test")
	l := config.NewLoader(filepath.Join(dir, "postern.yaml"), config.ForGateway, nil)
	load(t, l)
	point("v2", "whsec_two_of_a_test")
	changed(t, l, "a swapped link")
	if got := string(load(t, l).Endpoints()[0].Source.Secrets[0].Value); got != "whsec_two_of_a_test" {
		t.Errorf("the secret is %q", got)
	}
}

// A pipe returns its secret once. A reload reuses it instead of waiting for another writer.
func TestLoader_secretFromPipe_isReused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pipe, file := filepath.Join(dir, "pipe"), filepath.Join(dir, "postern.yaml")
	must(t, syscall.Mkfifo(pipe, 0o600))
	write(t, file, withSecretIn(pipe))
	written := make(chan error, 1)
	go func() { written <- os.WriteFile(pipe, []byte("whsec_once_of_a_test"), 0) }()
	l := config.NewLoader(file, config.ForGateway, nil)
	for range 3 {
		if got := string(load(t, l).Endpoints()[0].Source.Secrets[0].Value); got != "whsec_once_of_a_test" {
			t.Errorf("the secret is %q", got)
		}
		unchanged(t, l, "a pipe that was read out")
	}
	if err := <-written; err != nil {
		t.Error(err)
	}
}

// Command-line settings apply to every load, and their secret files are watched like the others.
func TestLoader_edit_runsAtEachLoad(t *testing.T) {
	t.Parallel()
	dir := files(t, map[string]string{"secret": "whsec_first_of_a_test"})
	secret := filepath.Join(dir, "secret")
	l := config.NewLoader("", config.ForDev, func(c *config.Config) error {
		c.Sources = config.DemoSources()
		return c.ReplaceSecret("stripe", secret)
	})
	load(t, l)
	write(t, secret, "whsec_second_of_a_test")
	changed(t, l, "the secret of the command line")
	if got := string(load(t, l).InstanceSources()["shopify"].Secret); got != config.DemoShopifySecret {
		t.Errorf("the other source's secret is %q", got)
	}
	must(t, os.Remove(secret))
	if _, err := l.Load(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without the secret: %v", err)
	}
	unchanged(t, l, "a file that is still missing")
}

// Only sources and similar sections are reloaded. NeedRestart names the other changed settings,
// compared with the process's start.
func TestLoader_needRestart_namesChangedSettings(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "postern.yaml")
	write(t, file, "database: {url: postgres://x}\n")
	l := config.NewLoader(file, config.ForGateway, nil)
	load(t, l).Database.URL = "postgres://found-out" // as the process does for its own servers
	for text, want := range map[string]string{
		"database: {url: postgres://x}\nsources: {a: {provider: stripe, secrets: [{name: n, value: whsec_secret_of_a_test}]}}": "",
		"database: {url: postgres://y}\ningest: {listen: 'h:1', max_body_bytes: 1MiB, tls: {cert: '" + file +
			"', key: '" + file + "'}}": "database.url ingest.listen ingest.tls.cert ingest.tls.key rejections.max_body",
		"database: {url: postgres://x}\nprocessor: {republisher: {every: 5s}}": "processor.republisher.every",
		"database: {url: postgres://x}\n":                                      "",
	} {
		write(t, file, text)
		names := l.NeedRestart(load(t, l))
		slices.Sort(names)
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s\nneeds a restart for %q, want %q", text, got, want)
		}
	}
}

// Processes with the same sources have the same digest, whatever their other settings and the
// values of their secrets.
func TestDigest_sections_decide(t *testing.T) {
	t.Parallel()
	digest := func(more, name, secret string) string {
		c := parse(t, "database: {url: postgres://x}\n"+more+"sources:\n  a: {provider: stripe, "+
			"secrets: [{name: "+name+", value: "+secret+"}]}\n")
		return c.Digest()
	}
	one := digest("", "n", "whsec_secret_of_the_tests")
	if other := digest("ingest: {listen: 127.0.0.1:1}\n", "n", "whsec_another_of_the_tests"); other != one {
		t.Errorf("the listen address or the secret changes the digest: %s, %s", one, other)
	}
	if other := digest("", "m", "whsec_secret_of_the_tests"); other == one {
		t.Error("another name of the secret does not change the digest")
	}
}
