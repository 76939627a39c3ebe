package oracles_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	_ "github.com/oapi-codegen/runtime" // the generated client for Go needs it
)

// The generators of other projects accept the description of the admin API, and the compilers of
// three languages accept what they generate. For Python it is the types of all results only.
func TestOpenAPI_generatedClients_compile(t *testing.T) {
	t.Parallel()
	description, err := filepath.Abs("../../internal/admin/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	node := "node/node_modules/"
	for language, commands := range map[string][][]string{
		"Go": {
			{"go", "tool", "oapi-codegen", "-generate", "types,client", "-package", "client", "-o", "DIR/client.go", description},
			{"go", "vet", "DIR/client.go"},
		},
		"TypeScript": {
			{"node", node + "openapi-typescript/bin/cli.js", description, "-o", "DIR/api.ts"},
			{"node", node + "typescript/bin/tsc", "--noEmit", "--strict", "DIR/api.ts"},
		},
		"Python": {
			{"node", node + "quicktype/dist/index.js", "-s", "schema", description + "#/components/schemas/", "-l", "python",
				"--python-version", "3.7", "-o", "DIR/types.py"},
			{"python3", "-m", "py_compile", "DIR/types.py"},
		},
	} {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for _, command := range commands {
				for i, arg := range command {
					if file, ok := cutDir(arg); ok {
						command[i] = filepath.Join(dir, file)
					}
				}
				run := exec.CommandContext(t.Context(), command[0], command[1:]...)
				run.Env = append(os.Environ(), "PYTHONPYCACHEPREFIX="+dir)
				if out, err := run.CombinedOutput(); err != nil {
					t.Fatalf("%v: %v\n%s", command, err, out)
				}
			}
		})
	}
}

func cutDir(arg string) (string, bool) {
	const prefix = "DIR/"
	if len(arg) > len(prefix) && arg[:len(prefix)] == prefix {
		return arg[len(prefix):], true
	}
	return arg, false
}
