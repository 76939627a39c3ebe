package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/telemetry"
	"github.com/postern-gateway/postern/internal/testkit/shopifyfake"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// startObjects is how many objects each account has at the start.
const startObjects = 40

// owner has the functions that end the fakes.
type owner []func()

func (o *owner) Helper()            {}
func (o *owner) Cleanup(end func()) { *o = append(*o, end) }

func (o *owner) close() {
	for _, end := range slices.Backward(*o) {
		end()
	}
}

// run runs the playground in a new folder until ctx ends, and removes the folder.
func run(ctx context.Context, out io.Writer) (err error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return fmt.Errorf("make a new folder: %w; does a playground run here? If one was killed, remove the folder",
			err)
	}
	cluster, _, err := postgres.ClusterDir(dir + "/postgres")
	if err == nil {
		err = os.RemoveAll(cluster) // it may be elsewhere, and of a playground that was killed
	}
	defer func() { err = errors.Join(err, os.RemoveAll(cluster), os.RemoveAll(dir)) }()
	if err != nil {
		return err
	}
	var o owner
	defer o.close()
	stripe, shop := newStripe(&o), newShop(&o)
	fmt.Fprintln(out, "Starting PostgreSQL, JetStream, Postern and the fake APIs ...")
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	local, err := newInstance(ctx, stripe.URL, shop.URL)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() {
		err := local.Run(ctx)
		stop() // it may have failed
		ended <- err
	}()
	if err = serve(&o, "http://"+local.Addr(), stripe, shop, out); err == nil {
		<-ctx.Done()
	}
	stop()
	fmt.Fprintln(out, "Stopping ...")
	return errors.Join(err, <-ended)
}

// settings are of the instance. Both sources read a fake API.
const settings = `ingest: {listen: 127.0.0.1:0}
admin: {listen: 127.0.0.1:0}
sources:
  stripe:
    provider: stripe
    secrets: [{name: playground, value: %s}]
    api: {base_url: %q, key: {value: %s}, version: %s, rate: 50}
  shop:
    provider: shopify
    account: %s
    secrets: [{name: playground, value: %s}]
    api: {base_url: %q, key: {value: %s}, rate: 50}
`

// newInstance makes what postern dev --config FILE runs. Its log is in the folder, and open until
// the process ends.
func newInstance(ctx context.Context, stripe, shop string) (*app.Local, error) {
	const file = dir + "/postern.yaml"
	text := fmt.Sprintf(settings, stripefake.Secret, stripe, stripefake.Key, stripefake.Version,
		shopifyfake.Shop, shopifyfake.Secret, shop, shopifyfake.Key)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, fmt.Errorf("write the configuration: %w", err)
	}
	loader := config.NewLoader(file, config.ForDev, nil)
	cfg, err := loader.Load()
	if err != nil {
		return nil, err
	}
	log, err := os.Create(dir + "/postern.log")
	if err != nil {
		return nil, fmt.Errorf("make the log: %w", err)
	}
	logger, err := telemetry.NewLogger(log, cfg.Log.Format, cfg.Log.Level)
	if err != nil {
		return nil, err
	}
	return app.NewLocal(ctx, app.LocalOptions{Config: cfg, Logger: logger, File: file, Dir: dir, Cluster: true,
		Loader: loader})
}

// serve fills the accounts and serves commands.
func serve(o *owner, instance string, stripe, shop *account, out io.Writer) error {
	c := &control{out: out, accounts: map[string]*account{"stripe": stripe, "shop": shop}}
	for name, a := range c.accounts {
		a.source, a.endpoint = name, instance+"/webhooks/"+name
		if err := a.fill(startObjects); err != nil {
			return err
		}
	}
	server := httptest.NewServer(c)
	o.Cleanup(server.Close)
	if err := os.WriteFile(controlFile, []byte(server.URL), 0o600); err != nil {
		return fmt.Errorf("write the address for commands: %w", err)
	}
	folder := strings.TrimSuffix(os.Args[0], filepath.Base(os.Args[0]))
	_, err := fmt.Fprintf(out, guide, startObjects, os.Args[0], folder)
	return err
}

const guide = `
The playground is ready: a fake Stripe account with %[1]d customers, and a fake shop with %[1]d products.
Both are mirrored. Try in another terminal:

  %[2]s stripe change-silently 5
  %[3]spostern --dir ` + dir + ` reconcile stripe --type customer --dry-run
  %[3]spostern --dir ` + dir + ` drift report 1

All commands: %[2]s help
Ctrl-C ends everything and removes the folder ` + dir + `.

`

// control executes commands, one after the other.
type control struct {
	mu       sync.Mutex
	accounts map[string]*account
	out      io.Writer
}

// ServeHTTP executes the command in the body: SOURCE COMMAND VALUE.
func (c *control) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var source, command, value, said string
	_, err := fmt.Fscan(r.Body, &source, &command, &value)
	if a := c.accounts[source]; err == nil && a != nil {
		said, err = a.do(command, value)
	} else if err == nil {
		err = fmt.Errorf("there is no source %q; there are stripe and shop", source)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	fmt.Fprintln(io.MultiWriter(w, c.out), said)
}
