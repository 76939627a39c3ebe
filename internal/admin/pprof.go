package admin

import (
	"net/http"
	"net/http/pprof"

	"github.com/labstack/echo/v4"
)

// profiles serves /debug/pprof/, without the command line, which may name a password. A CPU profile or trace lasts 30 s unless
// ?seconds= says otherwise, at most as long as the server may write.
func profiles(g *echo.Group) {
	for _, name := range []string{"", "/", "/:profile"} {
		g.GET(name, func(c echo.Context) error {
			switch c.Param("profile") {
			case "profile":
				return wrap(c, pprof.Profile)
			case "trace":
				return wrap(c, pprof.Trace)
			case "symbol":
				return wrap(c, pprof.Symbol)
			}
			return wrap(c, pprof.Index)
		})
	}
}

func wrap(c echo.Context, h http.HandlerFunc) error {
	h(c.Response(), c.Request())
	return nil
}
