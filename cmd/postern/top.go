package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/telemetry/rates"
	"github.com/postern-gateway/postern/internal/terminal"
)

// minInterval is the shortest --every. A shorter one is probably a typing error, and would make the
// command poll without pause.
const minInterval = 100 * time.Millisecond

const scrapeTimeout = 2 * time.Second

// topCommand is one execution of `postern top`.
type topCommand struct {
	*call
	scraper  *rates.Scraper
	interval time.Duration
}

func newTopCommand(c *cli) *cobra.Command {
	var t topCommand
	var from []string
	var client clientFlags
	return command{
		use: "top", short: "Watch rates, latencies, queues, lag and outcomes", offline: true,
		long: `Watch rates, latencies and queues from the metrics of one or more processes, updated
every second. No Prometheus is needed. On a terminal it fills the screen until q or Ctrl-C. With
--once, or if the output is not a terminal, it prints one interval and exits. With -o json each
interval is one line, until interrupted, unless --once is given.

Rates are per second, over all processes. The processes are those of --from, else the instance in
--dir if that is given, else those of --config (the admin address, or the default ones of gateway
and processor), else the instance in .postern. A process that does not respond is shown as down
until it responds again.`,
		example: `  postern top
  postern top --from http://10.0.0.5:9090/metrics --from http://10.0.0.6:9090/metrics
  postern top --once --every 10s
  postern top -o json | jq .apply.lag_p99_seconds`,
		flags: []flag{{"once", "print one interval and exit", false}},
		moreFlags: func(cmd *cobra.Command) {
			client.addTo(cmd)
			client.addTokenFlag(cmd)
			cmd.Flags().StringArrayVar(&from, "from", nil,
				"`URL` of a process's metrics; may be given several times")
			cmd.Flags().DurationVar(&t.interval, "every", time.Second, "`time` between two updates")
		},
		run: func(x *call) error {
			if t.interval < minInterval {
				return usagef("--every %s is too short: at least %s", t.interval, minInterval)
			}
			t.call = x
			var err error
			if t.scraper, err = newScraper(x, from, &client); err != nil {
				return err
			}
			defer t.scraper.Client.CloseIdleConnections()
			if !x.json() && !x.has("once") {
				if s, ok := openScreen(x.in, x.out); ok {
					return t.drawIntervals(s)
				}
			}
			return t.printIntervals()
		},
	}.build(c)
}

// newScraper returns a scraper of the pages of --from, else of the admin addresses of the instance.
func newScraper(x *call, from []string, flags *clientFlags) (s *rates.Scraper, err error) {
	var in *config.Instance
	if len(from) == 0 {
		if from, in, err = x.adminAddresses(); err != nil {
			return nil, err
		}
	}
	s = &rates.Scraper{}
	for _, address := range from {
		if !strings.Contains(address, "://") { // http:// and /metrics may be left out
			address = "http://" + address
		}
		u, err := parseURL(address, "http://127.0.0.1:8081/metrics")
		if err != nil {
			return nil, err
		}
		u.Path = cmp.Or(strings.TrimSuffix(u.Path, "/"), "/metrics")
		s.Addresses = append(s.Addresses, u.String())
	}
	transport, err := flags.transport()
	if err != nil {
		return nil, err
	}
	s.Client = newClient(transport, scrapeTimeout)
	token, err := flags.token()
	s.Authorize = func(req *http.Request) { authorize(req, token) }
	s.Check = func(res *http.Response) error {
		err := checkResponder(in, res)
		if err == nil && res.StatusCode == http.StatusUnauthorized {
			err = fmt.Errorf("responds with %s: give a token with --token-file or %s", res.Status, tokenVariable)
		}
		return err
	}
	return s, err
}

// adminAddresses finds the instance by --dir if that is given, then by --config, then by the
// environment, then in the default folder. The instance is nil unless a folder named it.
func (c *cli) adminAddresses() ([]string, *config.Instance, error) {
	if c.usesFolder() {
		in, err := c.readInstanceFile()
		if errors.Is(err, config.ErrNoInstance) {
			err = fmt.Errorf("%w, or name processes with --from URL or --config FILE", err)
		}
		if err != nil {
			return nil, nil, err
		}
		return []string{in.AdminURL}, in, nil
	}
	cfg, err := config.LoadOperator(c.config)
	if err != nil {
		return nil, nil, err
	}
	scheme := "http://"
	if cfg.Admin.TLS.Cert != "" {
		scheme = "https://"
	}
	if cfg.Admin.Listen != "" {
		return []string{scheme + cfg.Admin.Listen}, nil, nil
	}
	return []string{scheme + config.DefaultAdminListen, scheme + config.DefaultProcessorListen}, nil, nil
}

// printIntervals prints one interval, or with -o json one after the other.
func (t *topCommand) printIntervals() error {
	before := t.scraper.ScrapeAll(t.ctx)
	for {
		if !sleep(t.ctx, t.interval) {
			return nil // an interruption ends the command normally
		}
		after := t.scraper.ScrapeAll(t.ctx)
		if t.ctx.Err() != nil {
			return nil
		}
		v := rates.NewView(before, after)
		if t.has("once") || !t.json() {
			return t.printLast(&v)
		}
		if err := json.NewEncoder(t.out).Encode(&v); err != nil {
			return err
		}
		before = after
	}
}

// printLast prints a single interval. It returns an error if no process responded.
func (t *topCommand) printLast(v *rates.View) error {
	if t.json() {
		if err := json.NewEncoder(t.out).Encode(v); err != nil {
			return err
		}
	} else {
		for _, l := range newFrame(v, math.MaxInt, math.MaxInt) {
			fmt.Fprintln(t.out, strings.TrimRight(l, " "))
		}
	}
	for _, p := range v.Processes {
		if p.Up {
			return nil
		}
	}
	return fmt.Errorf("no process responds at %s: is it running?", strings.Join(t.scraper.Addresses, ", "))
}

// drawIntervals draws on a terminal until the context ends or the user quits.
func (t *topCommand) drawIntervals(s *topScreen) (err error) {
	ctx, quit := context.WithCancel(t.ctx)
	defer quit()
	if err := s.open(quit); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	before := t.scraper.ScrapeAll(ctx)
	v := rates.NewView(before, before)
	for {
		if err := s.draw(&v); err != nil {
			return err
		}
		if !sleep(ctx, t.interval) {
			return nil
		}
		after := t.scraper.ScrapeAll(ctx)
		v, before = rates.NewView(before, after), after
	}
}

// sleep returns false if ctx ends before the time is over.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Terminal control sequences: alternate screen without a cursor, back to the normal screen, cursor
// home, clear the rest of the line, clear the rest of the screen.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	clearLine   = "\x1b[K"
	clearRest   = "\x1b[J"
)

// topScreen is a terminal in use by the command.
type topScreen struct {
	in         *os.File
	out        *terminal.Screen
	savedState *term.State
}

// openScreen reports whether input and output are a terminal.
func openScreen(in io.Reader, out io.Writer) (*topScreen, bool) {
	i, ok1 := in.(*os.File)
	o, ok2 := out.(*terminal.Screen)
	if !ok1 || !ok2 || !term.IsTerminal(int(i.Fd())) {
		return nil, false
	}
	return &topScreen{in: i, out: o}, true
}

// open switches the terminal to the alternate screen; close restores it. quit is called when the
// user quits or the terminal closes.
func (s *topScreen) open(quit func()) (err error) {
	if s.savedState, err = term.MakeRaw(int(s.in.Fd())); err != nil {
		return err
	}
	go s.listen(quit) // it ends with the process, because a read from a terminal cannot be cancelled
	return s.out.Control(enterScreen)
}

func (s *topScreen) close() error {
	return errors.Join(s.out.Control(leaveScreen), term.Restore(int(s.in.Fd()), s.savedState))
}

// listen waits for q, Ctrl-C, Ctrl-D or the end of the terminal. In raw mode Ctrl-C is a byte and
// not a signal.
func (s *topScreen) listen(quit func()) {
	defer quit()
	key := make([]byte, 1)
	for {
		if _, err := s.in.Read(key); err != nil || strings.ContainsRune("qQ\x03\x04", rune(key[0])) {
			return
		}
	}
}

// draw draws a view from the top, cut to the current size of the terminal.
func (s *topScreen) draw(v *rates.View) error {
	width, height, err := s.out.Size()
	if err != nil || width <= 0 || height <= 0 {
		width, height = screenWidth, 24
	}
	var b strings.Builder
	b.WriteString(home)
	for i, l := range fitLines(newFrame(v, width, screenRejections), width, height) {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(terminal.Escape(l) + clearLine)
	}
	b.WriteString(clearRest)
	return s.out.Control(b.String())
}
