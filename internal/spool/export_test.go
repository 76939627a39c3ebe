package spool

// End is the place up to which the file that is written to is durable.
func (s *Spool) End() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.active.end
}

// Retire tells whether a drain that has read the file that is written to up to end may remove it.
func (s *Spool) Retire(end int64) bool {
	over, _ := s.retired(s.active, end)
	return over
}
