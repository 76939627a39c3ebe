package main

import "testing"

// What mutants replace is still there, once: a change of the product may ask for a mutant to be written anew.
func TestMutantsFit(t *testing.T) {
	t.Parallel()
	for _, m := range mutants() {
		if _, err := m.overlay(t.Context(), t.TempDir()); err != nil {
			t.Errorf("the product that %s: %v", m.name, err)
		}
	}
}
