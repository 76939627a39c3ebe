package ingest

import "sync"

// shares divides a bound among sources. A source may hold as much as is still free besides: alone it gets a half, two get a
// third each, so that however much some hold, the others find room. Its only part may be as large as all that is free, since
// the largest body must fit; and where there is but one source, all is its own.
type shares struct {
	mu    sync.Mutex
	most  int64
	used  int64
	alone bool
	held  map[string]holding
}

// holding is what one source has: parts (bodies, deliveries) that measure an amount together.
type holding struct{ parts, amount int64 }

func newShares(most int64) *shares { return &shares{most: most, held: map[string]holding{}} }

// setAlone says whether there is one source only.
func (s *shares) setAlone(alone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.alone = alone
}

// fits tells whether a new part of that size would be within the source's share now.
func (s *shares) fits(source string, amount int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.free(source, 1, amount)
}

// begin takes the first piece of a new part; false where it is more than the source's share.
func (s *shares) begin(source string, amount int64) bool { return s.take(source, 1, amount) }

// grow takes more for a part that was begun.
func (s *shares) grow(source string, amount int64) bool { return s.take(source, 0, amount) }

func (s *shares) take(source string, parts, amount int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.free(source, parts, amount) {
		return false
	}
	h := s.held[source]
	s.used += amount
	s.held[source] = holding{h.parts + parts, h.amount + amount}
	return true
}

func (s *shares) free(source string, parts, amount int64) bool {
	h, free := s.held[source], s.most-s.used
	return amount <= free && (s.alone || h.parts+parts <= 1 || h.amount+amount <= free)
}

// end gives back a part whose pieces were amount together.
func (s *shares) end(source string, amount int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used -= amount
	h := s.held[source]
	if h.parts--; h.parts == 0 {
		delete(s.held, source) // nothing stays of a source that is no longer configured
		return
	}
	h.amount -= amount
	s.held[source] = h
}

// part is a part of a source's holding that grows piece by piece. The zero part is nothing.
type part struct {
	of     *shares
	source string
	amount int64
}

// grow makes the part as large as that; false where it is more than the source's share.
func (p *part) grow(amount int64) bool {
	if p.amount == 0 && !p.of.begin(p.source, amount) || p.amount > 0 && !p.of.grow(p.source, amount-p.amount) {
		return false
	}
	p.amount = amount
	return true
}

// release gives the part back.
func (p *part) release() {
	if p.amount > 0 {
		p.of.end(p.source, p.amount)
	}
	*p = part{}
}

// inUse is what all sources hold together.
func (s *shares) inUse() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}
