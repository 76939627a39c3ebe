package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// InstanceFile is the name of the file in which `postern dev` tells other commands how to reach it.
const InstanceFile = "instance.json"

// ErrNoInstance: no dev instance was ever started in the folder.
var ErrNoInstance = errors.New("no dev instance")

// ErrOtherFolder is the error for an instance file that was written for another folder.
var ErrOtherFolder = errors.New("instance file of another folder")

// InstanceHeader is the response header that names the instance, in responses to GET and HEAD.
const InstanceHeader = "Postern-Instance"

// Instance says how to reach a dev instance. Each start rewrites the file. It stays after a stop,
// because the database and secrets stay too.
type Instance struct {
	// Dir is the folder that the file was written for, as an absolute path. WriteInstance sets it.
	Dir string `json:"dir"`
	// ID names the start that wrote the file. Each HTTP server of that process sends it in
	// InstanceHeader. Empty: unknown.
	ID string `json:"id,omitempty"`
	// DatabaseID is postgres.Identity of the database. Empty: unknown, as while PostgreSQL is
	// unavailable.
	DatabaseID string `json:"database_id,omitempty"`
	// DatabaseURL reaches PostgreSQL as the cluster's owner.
	DatabaseURL string `json:"database_url"`
	// NATSURL reaches JetStream.
	NATSURL string `json:"nats_url"`
	// IngestURL is the base of the ingest paths, e.g. http://127.0.0.1:8080.
	IngestURL string `json:"ingest_url"`
	// AdminURL is the base of the admin interface.
	AdminURL string `json:"admin_url"`
	// PID is the process that wrote the file. It may have ended.
	PID int `json:"pid"`
	// Sources are the configured sources by name.
	Sources map[string]InstanceSource `json:"sources"`
}

// InstanceSource is the information about a source that `postern send` needs.
type InstanceSource struct {
	Provider string `json:"provider"`
	// Secret is the value of the first secret, given only for demo secrets.
	Secret string `json:"secret,omitempty"`
	// Account is the configured or first allowed tenant; "" where any is allowed.
	Account string `json:"account,omitempty"`
	// URL is the address that the provider signs; "" where it signs none.
	URL string `json:"url,omitempty"`
}

// InstanceSources describes the configured sources for the instance file. It contains only demo
// secrets, which are public.
func (c *Config) InstanceSources() map[string]InstanceSource {
	out := map[string]InstanceSource{}
	for name, src := range c.Sources {
		one := InstanceSource{Provider: src.Provider, Account: src.Account, URL: src.URL}
		if one.Account == "" && len(src.Accounts) > 0 && src.Accounts[0] != "*" {
			one.Account = src.Accounts[0]
		}
		if len(src.Secrets) > 0 && isDemoSecret(src.Secrets[0].secret) {
			one.Secret = string(src.Secrets[0].secret)
		}
		out[name] = one
	}
	return out
}

// WriteInstance writes the file into dir, readable by its owner only, in one step: a reader sees
// either the complete new file or the previous one.
func WriteInstance(dir string, in *Instance) error {
	var err error
	if in.Dir, err = filepath.Abs(dir); err != nil {
		return fmt.Errorf("write instance of %s: %w", dir, err)
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false) // operators copy the URLs from the file
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(in); err != nil {
		return fmt.Errorf("write instance of %s: %w", dir, err)
	}
	tmp, err := os.CreateTemp(dir, InstanceFile+".*") // created with mode 0600
	if err != nil {
		return fmt.Errorf("write instance of %s: %w", dir, err)
	}
	_, err = tmp.Write(text.Bytes())
	if err = errors.Join(err, tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), filepath.Join(dir, InstanceFile))
	}
	if err != nil {
		return fmt.Errorf("write instance of %s: %w", dir, errors.Join(err, os.Remove(tmp.Name())))
	}
	return nil
}

// ReadInstance reads the file from dir. Errors: ErrNoInstance where there is none, ErrOtherFolder
// where the file was written for another folder that still exists. A copied or moved folder would
// otherwise lead to the other folder's instance.
func ReadInstance(dir string) (*Instance, error) {
	path := filepath.Join(dir, InstanceFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w in %s: start one with `postern dev --dir %s`", ErrNoInstance, dir, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("read instance: %w", err)
	}
	in := &Instance{}
	if err := json.Unmarshal(b, in); err != nil {
		return nil, fmt.Errorf("read instance %s: %w", path, err)
	}
	if !sameFolder(in.Dir, dir) {
		return nil, fmt.Errorf("read instance %s: %w: it belongs to the instance in %s, and %s is a copy of that "+
			"folder or was moved: name that folder with --dir, or start an instance here with `postern dev --dir %s`",
			path, ErrOtherFolder, in.Dir, dir, dir)
	}
	return in, nil
}

// sameFolder reports whether the folder that a file was written for is the one it was read from. A
// folder that does not exist here counts as the same: the process may see it under another path, as
// in a container.
func sameFolder(written, dir string) bool {
	was, err := os.Stat(written)
	if err != nil {
		return true
	}
	is, err := os.Stat(dir)
	return err != nil || os.SameFile(was, is)
}
