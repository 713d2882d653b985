// Instruction set levels that the kernels are compiled for, chosen at run time.
#ifndef TANDEM_ISA_H
#define TANDEM_ISA_H

enum {
	TM_ISA_PORTABLE = 0,  // C only
	TM_ISA_AVX2 = 1,      // AVX2, FMA and F16C
	TM_ISA_AVX512 = 2,    // AVX-512 F, BW, DQ, VL and VNNI
	TM_ISA_AMX = 3,       // the same, and tiles of bytes for many rows
	TM_ISA_MODEL = 4,     // AMX with tiles modelled in C: slow, on AVX-512, for tests
};

// tm_isa_best returns the highest level that this CPU and operating system have,
// never the model. It asks the system for the use of tiles where there are some.
int tm_isa_best(void);

// tm_isa_name returns "portable", "avx2", "avx512", "amx" or "amx-model".
const char *tm_isa_name(int isa);

#endif
