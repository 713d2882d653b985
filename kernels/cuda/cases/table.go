package cases

import "slices"

// All returns the whole table.
func All() []Case {
	return slices.Concat(embedCases(), normCases(), actCases(), sumCases(), qkvCases(), decodeCases(), gemvCases(), shapeCases(), sampleCases(),
		prefillCases(), gemmCases(), routeCases(), routerCases(), sortCases(), combineCases(), expertCases(), fillCases())
}
