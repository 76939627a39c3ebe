package main

import "slices"

// mutants returns all mutants, part by part.
func mutants() []mutant {
	return slices.Concat(versioningMutants(), eventMutants(), ingestMutants(), signatureMutants(), processorMutants(),
		reconcileMutants(), replayMutants(), redactionMutants(), adminMutants())
}
