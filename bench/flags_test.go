package main

import (
	"flag"
	"io"
	"maps"
	"strings"
	"testing"
)

func parseArgs(args ...string) (options, error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	return parse(flags, args)
}

// The recorded command line, parsed again, gives the same options.
func TestParse_validFlags_recordsCommand(t *testing.T) {
	t.Parallel()
	o, err := parseArgs("-dir", "/d", "-postgres", "Wal_compression=lz4", "-traces", "-postgres=search_path=a=b",
		"-rounds", "3")
	if err != nil {
		t.Fatal(err)
	}
	if want := (settings{"wal_compression": "lz4", "search_path": "a=b"}); !maps.Equal(o.postgres, want) || !o.traces ||
		o.dir != "/d" {
		t.Errorf("read %+v", o)
	}
	const want = "bench -postgres=search_path=a=b -postgres=wal_compression=lz4 -rounds=3 -traces=true"
	if o.command != want {
		t.Errorf("recorded %s\nwant %s", o.command, want)
	}
	again, err := parseArgs(strings.Fields(want)[1:]...)
	if err != nil || again.command != want {
		t.Errorf("parsed again it is %s, %v", again.command, err)
	}
	if o, err := parseArgs(); err != nil || len(o.postgres) != 0 || o.traces || o.command != "bench" {
		t.Errorf("without flags %+v, %v", o, err)
	}
}

// A shell splits the recorded command into the arguments that were given.
func TestParse_valuesWithSpaces_quotesCommand(t *testing.T) {
	t.Parallel()
	o, err := parseArgs("-postgres", "search_path=a, it's", "-only", "closed-*", "-rounds", "3")
	if err != nil {
		t.Fatal(err)
	}
	if want := `bench '-only=closed-*' '-postgres=search_path=a, it'\''s' -rounds=3`; o.command != want {
		t.Errorf("recorded %s\nwant %s", o.command, want)
	}
}

func TestParse_invalidFlags_errorSaysRemedy(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ args, want string }{
		{"-postgres shared_buffers", "write name=value, for example"},
		{"-postgres =1GB", "write name=value, for example"},
		{"-postgres shared-buffers=1GB", "write name=value, for example"},
		{"-postgres fsync=on -postgres FSYNC=off", "fsync is given twice: give it once"},
		{"-gate -traces", "leave out -postgres and -traces"},
		{"-gate-record -postgres fsync=off", "leave out -postgres and -traces"},
		{"closed-64", "rows are chosen with -only"},
	} {
		if _, err := parseArgs(strings.Fields(c.args)...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.args, err, c.want)
		}
	}
}
