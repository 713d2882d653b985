// Package measure times single pieces of the CUDA backend on a device: copies, kernels, matrix
// products, launches. The GPU check compares whole steps with them. Without the build tag cuda it
// has only the nouns.
package measure
