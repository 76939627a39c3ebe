package oracles_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/postern-gateway/postern/internal/provider"
)

// nodeJS is the child process that asks SDKs for Node.
type nodeJS struct {
	mu      sync.Mutex
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers chan answer
	said    strings.Builder
}

// question is what node/oracle.mjs is asked.
type question struct {
	SDK     string            `json:"sdk"`
	Op      string            `json:"op"`
	Secret  string            `json:"secret"`
	Method  string            `json:"method"`
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers"`
	Body    []byte            `json:"body"`
	// Time is when to sign, as the sender writes it.
	Time string `json:"time,omitempty"`
}

// answer is what it answers.
type answer struct {
	OK      bool              `json:"ok"`
	Why     string            `json:"why"`
	Headers map[string]string `json:"headers"`
	// Error is a question that could not be asked.
	Error string `json:"error"`
	Ready bool   `json:"ready"`
	err   error
}

// patience is how long an answer may take on a machine that is busy with something else.
const patience = 3 * time.Minute

// started is the one child of a run, which TestMain ends.
var started struct {
	once sync.Once
	node *nodeJS
	err  error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if n := started.node; n != nil {
		_ = n.in.Close() // at the end of its input it is done
		if err := n.cmd.Wait(); err != nil && code == 0 {
			fmt.Fprintln(os.Stderr, "node:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// child is the running child process, with every SDK loaded.
func child(t rapid.TB) *nodeJS {
	t.Helper()
	started.once.Do(func() { started.node, started.err = startNode() })
	if started.err != nil {
		t.Fatalf("%v", started.err)
	}
	return started.node
}

func startNode() (*nodeJS, error) {
	const advice = "run `make prerequisites` (npm ci in test/oracles/node; it needs Node 20 or newer, npm, and the " +
		"way to its registry)"
	if _, err := exec.LookPath("node"); err != nil {
		return nil, fmt.Errorf("node is not installed: %s", advice)
	}
	if _, err := os.Stat("node/node_modules/.package-lock.json"); err != nil {
		return nil, fmt.Errorf("the SDKs for Node are not installed: %s", advice)
	}
	const program = "node/oracle.mjs"
	if _, err := os.Stat(program); err != nil { // so that what go test remembers is forgotten when it changes
		return nil, err
	}
	n := &nodeJS{cmd: exec.Command("node", program), answers: make(chan answer)}
	n.cmd.Stderr = &n.said
	out, err := n.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if n.in, err = n.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := n.cmd.Start(); err != nil {
		return nil, err
	}
	go n.listen(out)
	if a := n.await(); a.err != nil || !a.Ready {
		_ = n.cmd.Process.Kill()
		_ = n.cmd.Wait()
		return nil, fmt.Errorf("node oracle.mjs: %w: %s%s", a.err, a.Error, n.said.String())
	}
	return n, nil
}

// listen reads answers until there are no more.
func (n *nodeJS) listen(out io.Reader) {
	defer close(n.answers)
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var a answer
		a.err = json.Unmarshal(line, &a)
		n.answers <- a
	}
}

func (n *nodeJS) await() answer {
	select {
	case a, ok := <-n.answers:
		if !ok {
			a.err = io.ErrUnexpectedEOF
		}
		return a
	case <-time.After(patience):
		return answer{err: fmt.Errorf("no answer within %s", patience)}
	}
}

// ask asks one question at a time.
func (n *nodeJS) ask(q question) (answer, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if q.Body == nil {
		q.Body = []byte{}
	}
	text, err := json.Marshal(q)
	if err != nil {
		return answer{}, err
	}
	if _, err := n.in.Write(append(text, '\n')); err != nil {
		return answer{}, fmt.Errorf("ask node: %w", err)
	}
	a := n.await()
	if a.err == nil && a.Error != "" {
		a.err = fmt.Errorf("%s: %s", q.SDK, a.Error)
	}
	return a, a.err
}

func ask(op, sdk, secret, url string, d *provider.Delivery, at string) answer {
	q := question{SDK: sdk, Op: op, Secret: secret, Method: "POST", URL: url, Headers: map[string]string{},
		Body: d.Body, Time: at}
	for name, values := range d.Header {
		// As Node joins what came several times.
		q.Headers[strings.ToLower(name)] = strings.Join(values, ", ")
	}
	a, err := started.node.ask(q)
	if err != nil {
		panic(err) // not an answer of the SDK; the test cannot go on
	}
	return a
}

// verifiedBy asks an SDK for Node whether it accepts a delivery.
func verifiedBy(sdk string) func(secret, url string, d *provider.Delivery) bool {
	return func(secret, url string, d *provider.Delivery) bool { return ask("verify", sdk, secret, url, d, "").OK }
}

// signedBy has an SDK for Node sign a delivery, with the time written in a unit.
func signedBy(sdk string, written func(time.Time) string) func(secret, url string, d *provider.Delivery,
	at time.Time) error {
	return func(secret, url string, d *provider.Delivery, at time.Time) error {
		for name, value := range ask("sign", sdk, secret, url, d, written(at)).Headers {
			d.Header.Set(name, value)
		}
		return nil
	}
}
