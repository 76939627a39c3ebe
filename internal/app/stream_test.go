package app_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/testkit"
)

// A daemon that reaches the streams tells of them at its admin address, and its auditor makes the pass that is asked for there.
func TestStreamAtTheAdminAddress(t *testing.T) {
	t.Parallel()
	b := configured(t, nil)
	a := b.start(t, app.Options{Gateway: true, Processor: true})
	base := "http://" + a.AdminAddr() + "/api/v1/stream"
	var status struct {
		Trouble string           `json:"trouble"`
		Streams []map[string]any `json:"streams"`
	}
	testkit.Eventually(t, time.Minute, func() error {
		read(t, base, &status)
		if status.Trouble != "" || len(status.Streams) != 4 || status.Streams[0]["missing"] != false {
			return fmt.Errorf("%+v", status)
		}
		return nil
	})
	res, err := http.Post(base+"/heals", "application/json", strings.NewReader(`{"reason": "a test"}`))
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Fatalf("asked for a pass: %d", res.StatusCode)
	}
	testkit.Eventually(t, time.Minute, func() error {
		var heal struct {
			EndedAt *time.Time `json:"ended_at"`
			Detail  string     `json:"detail"`
		}
		if read(t, base+"/heals/1", &heal); heal.EndedAt == nil {
			return fmt.Errorf("not at its end: %s", heal.Detail)
		}
		return nil
	})
}

func read(t *testing.T, address string, into any) {
	t.Helper()
	res := get(t, address, "")
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(into); err != nil || res.StatusCode != http.StatusOK {
		t.Errorf("%s: %d, %v", address, res.StatusCode, err)
	}
}
