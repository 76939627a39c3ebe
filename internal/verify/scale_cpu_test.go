package verify_test

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// spent is the processor time, user and system, of this process and of the database's server, in seconds: on a busy machine it says more than a clock.
type spent struct{ client, server float64 }

func spending(t testing.TB, pool *pgxpool.Pool) (s spent) {
	t.Helper()
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		t.Fatal(err)
	}
	s.client = (time.Duration(use.Utime.Nano()) + time.Duration(use.Stime.Nano())).Seconds()
	var pid int
	if err := pool.QueryRow(t.Context(), `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
		t.Fatal(err)
	}
	server := stat(pid)[1]
	folders, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	ticks := stat(int(server))[13] + stat(int(server))[14] // of those that have ended
	for _, f := range folders {
		if pid, err := strconv.Atoi(f.Name()); err == nil {
			if of := stat(pid); len(of) > 14 && (of[1] == server || float64(pid) == server) {
				ticks += of[11] + of[12]
			}
		}
	}
	s.server = ticks / 100
	return s
}

// stat are the fields of /proc/PID/stat behind the name: 1 is the parent, 11 to 14 are ticks of itself and of children that have ended.
func stat(pid int) (fields []float64) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return make([]float64, 16)
	}
	for _, f := range strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:])) {
		n, _ := strconv.ParseFloat(f, 64)
		fields = append(fields, n)
	}
	return fields
}
