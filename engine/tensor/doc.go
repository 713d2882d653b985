// Package tensor holds the nouns that models and backends share: element
// types, tensors as a file holds them, handles to what a backend has loaded,
// and the batch that one forward step runs. It imports nothing of the project.
package tensor
