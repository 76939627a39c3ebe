package ingest

import (
	"runtime"
	"time"
)

// largeBodySize is the body size in bytes from which bodies are verified and parsed only a few at a
// time. Parsing JSON uses several times its size in memory, which no quota counts, and small
// deliveries should not wait for a CPU behind large ones.
const largeBodySize = 64 << 10

// semaphore lets as many large bodies through at once as there are CPUs.
type semaphore chan struct{}

func newSemaphore() semaphore { return make(semaphore, runtime.GOMAXPROCS(0)) }

// acquire waits until the body may be processed, and returns a function that the caller must call
// afterwards. It returns errOverloaded after the timeout. A small body passes at once.
func (s semaphore) acquire(size int, timeout time.Duration) (release func(), err error) {
	if size < largeBodySize {
		return func() {}, nil
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case s <- struct{}{}:
		return func() { <-s }, nil
	case <-timer.C:
		return nil, errOverloaded
	}
}
