package admin

import (
	"net/http"
	"net/http/pprof"

	"github.com/labstack/echo/v4"
)

// pprofRoutes serves /debug/pprof/, without the command line, which may contain a password. A CPU
// profile or trace lasts 30 s unless ?seconds= says otherwise. The server's write timeout limits
// it.
func pprofRoutes(g *echo.Group) {
	for _, name := range []string{"", "/", "/:profile"} {
		g.GET(name, func(c echo.Context) error {
			switch c.Param("profile") {
			case "profile":
				return servePprof(c, pprof.Profile)
			case "trace":
				return servePprof(c, pprof.Trace)
			case "symbol":
				return servePprof(c, pprof.Symbol)
			}
			return servePprof(c, pprof.Index)
		})
	}
}

func servePprof(c echo.Context, h http.HandlerFunc) error {
	h(c.Response(), c.Request())
	return nil
}
