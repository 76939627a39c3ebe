package main

import "slices"

// mutants are the ways to break the product, by part.
func mutants() []mutant {
	return slices.Concat(
		versioningMutants(),
		processorMutants(),
		reconcileMutants(),
		replayMutants(),
		redactionMutants(),
	)
}
