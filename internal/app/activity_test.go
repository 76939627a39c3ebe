package app_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
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
// Deliveries are counted by source and minute, from the receipt to the outcome.
func TestActivity_processesAndDeliveries_areReported(t *testing.T) {
	t.Parallel()
	b := configured(t, nil)
	b.app = b.launch(t, app.Options{Gateway: true, Tune: reportOften})
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
	if both[0].AdminAddress != b.app.AdminAddr() || both[0].ConfigDigest != both[1].ConfigDigest {
		t.Errorf("%+v\n%+v", both[0], both[1])
	}

	one := b.sign(t, "stripe", "customer.updated", 1, time.Now())
	b.mustPost(t, "stripe", one)
	b.mustPost(t, "stripe", one)
	b.mustPost(t, "shopify", b.sign(t, "shopify", "orders/create", 1, time.Now()))
	forged := b.sign(t, "stripe", "customer.updated", 2, time.Now())
	forged.Body = append(forged.Body, ' ')
	if status, _ := b.post(t, "stripe", forged); status != http.StatusUnauthorized {
		t.Fatalf("a forged delivery gets %d", status)
	}
	want := map[string]activity.Counts{"stripe": {Stored: 1, Duplicates: 1, Rejected: 1, Applied: 1},
		"shopify": {Stored: 1, Applied: 1}}
	testkit.Eventually(t, time.Minute, func() error {
		var found activity.Points
		if err := adminGet(processor, "/activity?by_source=true&step=hour&since=2h", &found); err != nil {
			return err
		}
		got := map[string]activity.Counts{}
		for _, p := range found.Points {
			got[p.Source] = p.Counts
		}
		if !maps.Equal(got, want) {
			return fmt.Errorf("%+v, want %+v", got, want)
		}
		return nil
	})
	testkit.Eventually(t, time.Minute, func() error {
		var types struct{ Items []activity.SourceType }
		if err := adminGet(processor, "/source-types?source=stripe", &types); err != nil {
			return err
		}
		if len(types.Items) != 1 || types.Items[0].Type != "customer.updated" || types.Items[0].Count != 1 {
			return fmt.Errorf("event types: %+v", types.Items)
		}
		return nil
	})
	stop(t, b.app)
	list("processor ")
}
