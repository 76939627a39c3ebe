package ingest_test

import (
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
)

var (
	// block is a block of a page, by its language.
	block = regexp.MustCompile("(?s)```(yaml|sh|json)\n(.*?)```")
	// word is a word of a command as a shell reads it, as far as the page's need it.
	word = regexp.MustCompile(`'[^']*'|"[^"]*"|[^\s'"]+`)
	// varies is what differs between two runs of a command.
	varies = regexp.MustCompile(`"(id|received_at)":"[^"]*"`)
)

// command is the request that a command with curl makes.
func command(t *testing.T, text string) *provider.Delivery {
	t.Helper()
	words := word.FindAllString(strings.ReplaceAll(strings.ReplaceAll(text, "\\\n", " "), "$TOKEN", apiToken), -1)
	for i, w := range words {
		words[i] = strings.Trim(w[:1], `'"`) + w[1:len(w)-1] + strings.Trim(w[len(w)-1:], `'"`)
	}
	if len(words) < 2 || words[0] != "curl" || words[1] != "$URL" || len(words)%2 != 0 {
		t.Fatalf("not understood: %q", words)
	}
	d := &provider.Delivery{Header: http.Header{}}
	for pair := range slices.Chunk(words[2:], 2) {
		switch pair[0] {
		case "-H":
			name, value, _ := strings.Cut(pair[1], ": ")
			d.Header.Add(name, value)
		case "-d":
			d.Body = []byte(strings.ReplaceAll(pair[1], "\n", "")) // as curl does
		default:
			t.Fatalf("not understood: %q", pair)
		}
	}
	return d
}

// What the page says is answered is answered, by a source that is configured as it says.
func TestPageOfTheAPISource(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/api-source.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := block.FindAllStringSubmatch(string(page), -1)
	if len(blocks) != 15 || blocks[0][1] != "yaml" {
		t.Fatalf("%d blocks", len(blocks))
	}
	env := map[string]string{"SHOP_TOKEN": apiToken}
	c, err := config.Parse([]byte("database: {url: postgres://postern@localhost/postern}\n"+blocks[0][2]), func(name string) string { return env[name] })
	if err != nil {
		t.Fatal(err)
	}
	shop := c.Endpoints()[0]
	if !shop.FinalReceipt {
		t.Error("the source may use the spool")
	}
	b := setupOn(t, testkit.Database(t), func(o *ingest.Options) {
		ep := o.Endpoints["api"]
		ep.Provider, ep.Config = shop.Provider, shop.Source
		o.Endpoints["api"] = ep
	})
	for i := 1; i < len(blocks); i += 2 {
		if blocks[i][1] != "sh" || blocks[i+1][1] != "json" {
			t.Fatalf("block %d is %s, and then %s", i, blocks[i][1], blocks[i+1][1])
		}
		a := b.post(t, "api", command(t, blocks[i][2]))
		got := varies.ReplaceAllStringFunc(string(a.body), func(found string) string {
			if strings.HasPrefix(found, `"id"`) {
				return `"id":"ID"`
			}
			return `"received_at":"TIME"`
		})
		if got != blocks[i+1][2] {
			t.Errorf("%s\nis answered %d\n%s\nand the page says\n%s", blocks[i][2], a.status, got, blocks[i+1][2])
		}
	}
	b.keeps(t, 4)
	for want, count := range map[string]int{"order 1001": 1, "order 1002": 1, "order 1003": 1, " ": 1} {
		if n := b.count(t, `SELECT count(*) FROM events WHERE object_type || ' ' || object_id = $1`, want); n != count {
			t.Errorf("%d events of object %q", n, want)
		}
	}
}
