package tensor

// MemoryReport says where a backend's memory goes.
type MemoryReport struct {
	Device          string // what computes: an instruction set level, a GPU's name
	Threads         int    // of the CPU that compute
	WeightBytes     int    // matrices and vectors that this backend packed
	SharedBytes     int    // others that it uses, and another backend packed
	KVBytes         int    // the whole pool
	ActivationBytes int    // for the most rows of a step, without the logits
	// HugeBytes is how much of the process's memory the system has put in huge
	// pages so far, -1 when it does not say.
	HugeBytes int
}
