package main

import "slices"

// mutants returns all mutants, part by part.
func mutants() []mutant {
	return slices.Concat(versioningMutants(), eventMutants(), ingestMutants(), signatureMutants(), applyMutants(),
		processorMutants(), changeMutants(), reconcileMutants(), replayMutants(), redactionMutants(), adminMutants())
}
