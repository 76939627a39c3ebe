package deploy_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// spoolVariable names a gateway's spool.
const spoolVariable = "POSTERN_INGEST_SPOOL_DIR"

// spoolPlace is where a gateway has its spool: dir, below the folder at which it finds storage that outlives its process.
type spoolPlace struct{ gateway, storage, folder, dir string }

// checkSpools wants that every gateway keeps its spool in storage that outlives it and that no other gateway has.
func checkSpools(places []spoolPlace) error {
	var bad []error
	owner := map[string]string{}
	for _, p := range places {
		if p.storage == "" || p.folder == "" || !strings.HasPrefix(p.dir, p.folder+"/") {
			bad = append(bad, fmt.Errorf("gateway %s has its spool in %q, which is not below %q, where %q is", p.gateway, p.dir, p.folder, p.storage))
		}
		if other, taken := owner[p.storage]; taken {
			bad = append(bad, fmt.Errorf("gateways %s and %s share %s: whoever starts second finds its spool in use", other, p.gateway, p.storage))
		}
		owner[p.storage] = p.gateway
	}
	if len(places) < 2 {
		bad = append(bad, fmt.Errorf("%d gateways, want two", len(places)))
	}
	return errors.Join(bad...)
}

func TestSharedSpoolsAreRefused(t *testing.T) {
	t.Parallel()
	good := func() []spoolPlace {
		return []spoolPlace{{"1", "a", "/lib", "/lib/spool"}, {"2", "b", "/lib", "/lib/spool"}}
	}
	if err := checkSpools(good()); err != nil {
		t.Error(err)
	}
	for name, spoil := range map[string]func(p *spoolPlace){
		"one volume for two":    func(p *spoolPlace) { p.storage = "a" },
		"beside the volume":     func(p *spoolPlace) { p.dir = "/other/spool" },
		"a name that begins so": func(p *spoolPlace) { p.dir = "/library/spool" },
		"no volume":             func(p *spoolPlace) { p.storage, p.folder = "", "" },
		"no spool":              func(p *spoolPlace) { p.dir = "" },
	} {
		places := good()
		if spoil(&places[1]); checkSpools(places) == nil {
			t.Errorf("%s: not refused", name)
		}
	}
}
