package admin_test

import (
	"net/http"
	"testing"

	"github.com/labstack/echo/v4"
)

// routes are those of the handler, so that a new one is in every test that goes through them.
func routes(t *testing.T, h http.Handler) (all []*echo.Route) {
	t.Helper()
	for _, r := range h.(*echo.Echo).Routes() {
		if r.Method != echo.RouteNotFound {
			all = append(all, r)
		}
	}
	if len(all) < 30 {
		t.Fatalf("%d routes", len(all))
	}
	return all
}
