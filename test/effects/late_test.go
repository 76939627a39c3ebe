package effects_test

import (
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sink"
)

// What the other side does only a while after the caller has left, and can be asked for, is done once: where it is asked when that is over it is known, and where it is asked before it is not sent again. A failure says neither.
func TestALateActIsNotRepeated(t *testing.T) {
	t.Parallel()
	for _, kind := range []kind{checked, asked} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			w := &world{t: t, log: applied.New(t), other: newOther(t), destinations: []string{"here"}}
			w.rules = []*rule{{name: "rule", when: conditions[0], key: keys[0], approval: "none", steps: []step{{"step", "here", kind}}}}
			w.model = newModel(w.rules)
			w.other.Honours = false
			var asks atomic.Int64
			w.other.Next = func(r *http.Request) sink.Fault {
				if r.Method == http.MethodPost {
					return sink.ActsLate
				}
				if asks.Add(1) == 1 {
					return sink.FailsFirst
				}
				return sink.Fine
			}
			w.enter()
			w.fight([]*mortal{immortal()})
			w.attended()
			w.followed()
		})
	}
}
