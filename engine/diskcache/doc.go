// Package diskcache keeps KV blocks in files, one block each, named by their
// content's hash. It knows nothing of what is worth keeping: whoever owns a Store
// says what to write, read and remove, and bounds it.
//
// A file is written under another name and renamed when it is complete, so a
// process that dies leaves whole files or such that are swept at the next start.
// Nothing is synced to the medium, since this is a cache: what a power failure
// tears is found by its checksums, when files are listed or read, and dropped.
//
// A folder belongs to one Store at a time. Stores of different models, or of
// several processes, that are given one place take a folder each below it.
package diskcache
