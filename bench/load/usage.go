package load

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of processor time in /proc.
const tick = 10 * time.Millisecond

// stat returns the fields of /proc/PID/stat after the program's name. The name may contain spaces
// and parentheses.
func stat(pid int) ([]string, error) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return nil, err
	}
	text := string(b)
	return strings.Fields(text[strings.LastIndexByte(text, ')')+1:]), nil
}

// ticks adds fields of a stat. Their numbers count from the first one after the name.
func ticks(fields []string, which ...int) time.Duration {
	var sum time.Duration
	for _, i := range which {
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err == nil {
			sum += time.Duration(n) * tick
		}
	}
	return sum
}

// The fields with the parent, and with user and system time of the process and of its ended
// children.
const (
	parent      = 1
	user        = 11
	system      = 12
	childUser   = 13
	childSystem = 14
)

// CPU returns the processor time that the process has used.
func (p *Process) CPU() (time.Duration, error) {
	f, err := stat(p.PID())
	if err != nil {
		return 0, fmt.Errorf("read the processor time of %s: %w", p.Name, err)
	}
	return ticks(f, user, system), nil
}

// familyCPU returns the processor time of a process and its children, ended ones included.
func familyCPU(pid int) (time.Duration, error) {
	f, err := stat(pid)
	if err != nil {
		return 0, err
	}
	sum := ticks(f, user, system, childUser, childSystem)
	kids, err := children(pid)
	if err != nil {
		return 0, err
	}
	for _, kid := range kids {
		if f, err := stat(kid); err == nil { // it may have ended just now
			sum += ticks(f, user, system)
		}
	}
	return sum, nil
}

func children(pid int) ([]int, error) {
	found, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var kids []int
	for _, dir := range found {
		kid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		if f, err := stat(kid); err == nil && f[parent] == strconv.Itoa(pid) {
			kids = append(kids, kid)
		}
	}
	return kids, nil
}

// ResetPeak resets the peak of the process's memory.
func (p *Process) ResetPeak() error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p.PID()), []byte("5"), 0)
}

// Peak returns the largest resident memory in bytes since ResetPeak.
func (p *Process) Peak() (int64, error) {
	return field(fmt.Sprintf("/proc/%d/status", p.PID()), "VmHWM:")
}

// Resident returns the current resident memory in bytes.
func (p *Process) Resident() (int64, error) {
	return field(fmt.Sprintf("/proc/%d/status", p.PID()), "VmRSS:")
}

// familyMemory returns the memory of a process and its children in bytes. Shared memory counts
// once.
func familyMemory(pid int) (int64, error) {
	kids, err := children(pid)
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, one := range append(kids, pid) {
		// A child may have ended since it was listed.
		if n, err := field(fmt.Sprintf("/proc/%d/smaps_rollup", one), "Pss:"); err == nil {
			sum += n
		}
	}
	return sum, nil
}

// field returns a number of kilobytes in a file of /proc, as bytes.
func field(file, name string) (int64, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			n, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return n << 10, err
		}
	}
	return 0, fmt.Errorf("%s has no %s", file, name)
}

// Usage is the resource usage of all servers up to a moment.
type Usage struct {
	At         time.Time
	PostgreSQL time.Duration
	NATS       time.Duration
	Processes  []time.Duration
	// WAL is the position of PostgreSQL's write-ahead log in bytes.
	WAL int64
}

// Usage reads what PostgreSQL, NATS and some processes have used so far.
func (m *Machine) Usage(ctx context.Context, ps ...*Process) (u Usage, err error) {
	u.At = time.Now()
	if err := m.Admin.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").Scan(&u.WAL); err != nil {
		return u, err
	}
	if u.PostgreSQL, err = familyCPU(m.pgPID); err != nil {
		return u, err
	}
	if u.NATS, err = m.nats.CPU(); err != nil {
		return u, err
	}
	for _, p := range ps {
		t, err := p.CPU()
		if err != nil {
			return u, err
		}
		u.Processes = append(u.Processes, t)
	}
	return u, nil
}

// Memory returns PostgreSQL's current resident memory and the peak of NATS since ResetMemory, in
// bytes.
func (m *Machine) Memory() (postgreSQL, nats int64, err error) {
	if postgreSQL, err = familyMemory(m.pgPID); err != nil {
		return 0, 0, err
	}
	nats, err = m.nats.Peak()
	return postgreSQL, nats, err
}

// ResetMemory resets the peak of NATS's memory.
func (m *Machine) ResetMemory() error { return m.nats.ResetPeak() }
