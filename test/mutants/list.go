package main

import "slices"

// mutants are the ways to break the product, by part.
func mutants() []mutant {
	return slices.Concat(
		versioningMutants(),
		eventMutants(),
		ingestMutants(),
		signatureMutants(),
		processorMutants(),
		reconcileMutants(),
		replayMutants(),
		redactionMutants(),
		adminMutants(),
	)
}
