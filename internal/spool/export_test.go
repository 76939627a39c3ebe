package spool

// End returns the offset up to which the active file is durable.
func (s *Spool) End() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.active.end
}

// TryDrop returns true if a drain that has read the active file up to end may delete it.
func (s *Spool) TryDrop(end int64) bool {
	dropped, _ := s.tryDropSegment(s.active, end)
	return dropped
}
