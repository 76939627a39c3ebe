package ingest

import "sync"

// quotas divides a limit among sources. A source may use at most as much as is free. A single busy
// source can therefore use half, two can use a third each, and there is always capacity for
// another. A source without another reservation may use all that is free, because the largest body
// must fit. If there is only one source, it may use everything.
type quotas struct {
	mu           sync.Mutex
	limit        int64
	used         int64
	singleSource bool
	usage        map[string]sourceUsage
}

// sourceUsage is what one source uses: the number of its reservations (bodies, deliveries) and
// their total amount.
type sourceUsage struct{ reservations, amount int64 }

func newQuotas(limit int64) *quotas { return &quotas{limit: limit, usage: map[string]sourceUsage{}} }

// setSingleSource sets whether there is only one source.
func (s *quotas) setSingleSource(single bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.singleSource = single
}

// fits returns true if a new reservation of that amount would be within the source's quota now.
func (s *quotas) fits(source string, amount int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.allows(source, 1, amount)
}

// reserve starts a new reservation; false if it exceeds the source's quota.
func (s *quotas) reserve(source string, amount int64) bool { return s.add(source, 1, amount) }

// grow adds to a reservation; false if it exceeds the source's quota.
func (s *quotas) grow(source string, amount int64) bool { return s.add(source, 0, amount) }

func (s *quotas) add(source string, reservations, amount int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.allows(source, reservations, amount) {
		return false
	}
	u := s.usage[source]
	s.used += amount
	s.usage[source] = sourceUsage{u.reservations + reservations, u.amount + amount}
	return true
}

func (s *quotas) allows(source string, reservations, amount int64) bool {
	u, free := s.usage[source], s.limit-s.used
	return amount <= free && (s.singleSource || u.reservations+reservations <= 1 || u.amount+amount <= free)
}

// release ends a reservation with the given total amount.
func (s *quotas) release(source string, amount int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used -= amount
	u := s.usage[source]
	if u.reservations--; u.reservations == 0 {
		delete(s.usage, source) // a source that is no longer configured leaves no entry
		return
	}
	u.amount -= amount
	s.usage[source] = u
}

// reservation is a part of a source's usage that can grow. The zero reservation holds nothing.
type reservation struct {
	quotas *quotas
	source string
	amount int64
}

// grow sets the reservation to the amount; false if it exceeds the source's quota.
func (p *reservation) grow(amount int64) bool {
	if p.amount == 0 && !p.quotas.reserve(p.source, amount) ||
		p.amount > 0 && !p.quotas.grow(p.source, amount-p.amount) {
		return false
	}
	p.amount = amount
	return true
}

// release ends the reservation.
func (p *reservation) release() {
	if p.amount > 0 {
		p.quotas.release(p.source, p.amount)
	}
	*p = reservation{}
}

// inUse returns the total of all sources.
func (s *quotas) inUse() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}
