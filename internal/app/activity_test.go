package app_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/activity"
	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/testkit"
)

func reportOften(tuning *app.Tuning) { tuning.ActivityInterval = 20 * time.Millisecond }

// admin reads a route of the admin API.
func adminGet(a *app.App, path string, into any) error {
	res, err := http.Get("http://" + a.AdminAddr() + "/api/v1" + path)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, res.Status, body)
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(body, into)
}

// Each process lists all, with those that can reprocess rejections. A process that stops is gone.
func TestActivity_processes_areListedByEach(t *testing.T) {
	t.Parallel()
	b := configured(t, nil)
	gateway := b.launch(t, app.Options{Gateway: true, Tune: reportOften})
	processor := b.start(t, app.Options{Processor: true, Tune: reportOften})
	list := func(want ...string) []activity.Process {
		t.Helper()
		var page struct{ Items []activity.Process }
		testkit.Eventually(t, time.Minute, func() error {
			if err := adminGet(processor, "/processes", &page); err != nil {
				return err
			}
			var kinds []string
			for _, p := range page.Items {
				kinds = append(kinds, p.Kind+" "+p.NotReady)
			}
			if fmt.Sprint(kinds) != fmt.Sprint(want) {
				return fmt.Errorf("%q, want %q", kinds, want)
			}
			return nil
		})
		return page.Items
	}
	both := list("gateway ", "processor ")
	if !both[0].CanReprocess || both[1].CanReprocess {
		t.Errorf("can reprocess: %v, %v", both[0].CanReprocess, both[1].CanReprocess)
	}
	if both[0].AdminAddress != gateway.AdminAddr() || both[0].ConfigDigest != both[1].ConfigDigest {
		t.Errorf("%+v\n%+v", both[0], both[1])
	}
	stop(t, gateway)
	list("processor ")
}
