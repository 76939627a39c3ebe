// Program pictures takes the pictures of the console for the documents, from a development instance
// that it starts and fills. Its arguments are the program postern and the folder of the pictures.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: pictures POSTERN FOLDER")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "pictures:", err)
		os.Exit(1)
	}
}

// maxBytes is the maximum size of a picture.
const maxBytes = 60 << 10

// instance is a running development instance.
type instance struct {
	program, dir string
	Admin        string `json:"admin_url"`
	Database     string `json:"database_url"`
}

func run(program, folder string) (err error) {
	dir, err := os.MkdirTemp("", "postern-pictures-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o711); err != nil { // PostgreSQL may run as another account
		return err
	}
	i := &instance{program: program, dir: filepath.Join(dir, "dev")}
	process := exec.Command(program, "dev", "--config", "pictures/demo.yaml", "--dir", i.dir, "--listen",
		"127.0.0.1:0", "--admin", "127.0.0.1:0")
	if err := process.Start(); err != nil {
		return err
	}
	defer func() {
		_ = process.Process.Signal(syscall.SIGTERM)
		_ = process.Wait() // the pictures are taken
	}()
	if err := i.wait(func() error {
		content, err := os.ReadFile(filepath.Join(i.dir, "instance.json"))
		if err == nil {
			err = json.Unmarshal(content, i)
		}
		if err == nil {
			err = i.read("/readyz", nil)
		}
		return err
	}); err != nil {
		return err
	}
	if err := i.fill(); err != nil {
		return err
	}
	return i.take(folder)
}

// wait tries something until it succeeds, for two minutes at most.
func (i *instance) wait(try func() error) (err error) {
	began := time.Now()
	for range time.Tick(200 * time.Millisecond) {
		if err = try(); err == nil || time.Since(began) > 2*time.Minute {
			return err
		}
	}
	return err
}

// read reads a path of the admin address; into may be nil.
func (i *instance) read(path string, into any) error {
	res, err := http.Get(i.Admin + path)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, res.Status)
	}
	if into == nil {
		return nil
	}
	return json.NewDecoder(res.Body).Decode(into)
}

// pastSQL invents the activity of the last day, since the instance runs only for a minute.
const pastSQL = `
INSERT INTO activity_minutes (minute, source, stored, duplicates, applied, unchanged, stale)
SELECT floor(extract(epoch FROM now()) / 60)::int - n, s.number, k, k / 7, k - k / 9, k / 12, k / 9 - k / 12
FROM generate_series(1, 59) n CROSS JOIN sources s
CROSS JOIN LATERAL (SELECT (30 + 18 * sin(n / 6.0 + s.number) + (n * 7919 % 13))::int AS k) x;
INSERT INTO activity_hours (hour, source, stored, duplicates, rejected, applied, unchanged, stale)
SELECT floor(extract(epoch FROM now()) / 3600)::int - n, s.number, k, k / 9, CASE WHEN n < 2 THEN 40 END, k - k / 8,
  k / 16, k / 8 - k / 16
FROM generate_series(1, 23) n CROSS JOIN sources s
CROSS JOIN LATERAL (SELECT (1500 + 900 * sin(n / 4.0 + s.number))::int AS k) x;
INSERT INTO activity_secrets (source, secret, hour, verified, last_at)
SELECT s.number, secret, floor(extract(epoch FROM now()) / 3600)::int - n, verified, now() - n * interval '1 hour'
FROM generate_series(1, 23) n CROSS JOIN sources s CROSS JOIN LATERAL (VALUES ('first', 90 * (n - 8)),
  ('second', 90 * (20 - n))) v (secret, verified)
WHERE s.name = 'stripe' AND verified > 0 ON CONFLICT DO NOTHING;`

// fill sends events and forged deliveries, and waits until the processes have reported them.
func (i *instance) fill() error {
	const second, own = "whsec_second_for_postern_dev", "pictures-of-the-console"
	for _, send := range []string{"customer.created --new-objects --count 12 stripe " + second,
		"invoice.paid --new-objects --count 6 stripe " + second,
		"customer.subscription.created stripe " + second,
		"customer.subscription.updated --count 8 --shuffle stripe " + second,
		"orders/create --new-objects --count 9 shopify " + own, "push --count 4 github " + own,
		"invoice.paid --tamper stripe " + second, "customer.updated --count 3 stripe whsec_wrong_secret_for_pictures"} {
		words := strings.Fields(send)
		secret, source := words[len(words)-1], words[len(words)-2]
		args := append([]string{"send", source}, words[:len(words)-2]...)
		out, err := exec.Command(i.program, append(args, "--secret", secret, "--dir", i.dir)...).CombinedOutput()
		if err != nil && !strings.Contains(string(out), "401 Unauthorized") {
			return fmt.Errorf("%s: %w: %s", send, err, out)
		}
	}
	if out, err := exec.Command("psql", i.Database, "-v", "ON_ERROR_STOP=1", "-c", "SET search_path = postern",
		"-c", pastSQL).CombinedOutput(); err != nil {
		return fmt.Errorf("psql: %w: %s", err, out)
	}
	return i.wait(func() error {
		var sources struct {
			Items []struct {
				Last *time.Time `json:"last_event_at"`
			}
		}
		err := i.read("/api/v1/sources", &sources)
		for _, s := range sources.Items {
			if s.Last == nil {
				err = errors.New("not all sources have reported their events")
			}
		}
		return err
	})
}

// take takes the pictures.
func (i *instance) take(folder string) error {
	var late struct{ Items []struct{ ID string } }
	if err := i.read("/api/v1/events?status=stale&limit=1", &late); err != nil || len(late.Items) == 0 {
		return fmt.Errorf("find a late event: %w", err)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.DisableGPU)
	if path := os.Getenv("CHROMIUM"); path != "" {
		options = append(options, chromedp.ExecPath(path))
	}
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	defer cancel()
	ctx, cancelTab := chromedp.NewContext(ctx)
	defer cancelTab()
	ctx, cancelAll := context.WithTimeout(ctx, 2*time.Minute)
	defer cancelAll()
	since := url.QueryEscape(time.Now().Add(-time.Hour).UTC().Format(time.RFC3339))
	for name, path := range map[string]string{"overview": "", "event": "events/" + late.Items[0].ID,
		"object": "objects/stripe/subscription/sub_1Postern0Team0001", "rejection": "rejections/1",
		"replay": "runs/new/replay?source=stripe&type=customer.subscription.*&dry_run=true&since=" + since,
		"source": "sources/stripe"} {
		if err := chromedp.Do(ctx, chromedp.EmulateViewport(1280, 860),
			chromedp.Navigate(i.Admin+"/console/"+path)); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		quality := int64(40)
		shot, err := chromedp.Call(ctx, page.CaptureScreenshot, page.CaptureScreenshotParams{
			Format: page.CaptureScreenshotFormatWebp, Quality: &quality})
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if len(shot.Data) > maxBytes {
			return fmt.Errorf("the picture %s has %d bytes, and may have %d", name, len(shot.Data), maxBytes)
		}
		if err := os.WriteFile(filepath.Join(folder, "console-"+name+".webp"), shot.Data, 0o644); err != nil {
			return err
		}
	}
	return nil
}
