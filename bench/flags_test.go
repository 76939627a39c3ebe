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

// What was asked for is there, and the command that the results tell can be given again.
func TestFlagsAreReadAndTold(t *testing.T) {
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
		t.Errorf("told %s\nwant %s", o.command, want)
	}
	again, err := parseArgs(strings.Fields(want)[1:]...)
	if err != nil || again.command != want {
		t.Errorf("given again it is %s, %v", again.command, err)
	}
	if o, err := parseArgs(); err != nil || len(o.postgres) != 0 || o.traces || o.command != "bench" {
		t.Errorf("without flags %+v, %v", o, err)
	}
}

// A shell reads the command as it was given.
func TestTheCommandIsQuoted(t *testing.T) {
	t.Parallel()
	o, err := parseArgs("-postgres", "search_path=a, it's", "-only", "closed-*", "-rounds", "3")
	if err != nil {
		t.Fatal(err)
	}
	if want := `bench '-only=closed-*' '-postgres=search_path=a, it'\''s' -rounds=3`; o.command != want {
		t.Errorf("told %s\nwant %s", o.command, want)
	}
}

func TestBadFlagsSayWhatToDo(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ args, says string }{
		{"-postgres shared_buffers", "write name=value, for example"},
		{"-postgres =1GB", "write name=value, for example"},
		{"-postgres shared-buffers=1GB", "write name=value, for example"},
		{"-postgres fsync=on -postgres FSYNC=off", "fsync comes twice: give it once"},
		{"-gate -traces", "leave out -postgres and -traces"},
		{"-gate-record -postgres fsync=off", "leave out -postgres and -traces"},
		{"closed-64", "rows are chosen with -only"},
	} {
		if _, err := parseArgs(strings.Fields(c.args)...); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", c.args, err, c.says)
		}
	}
}
