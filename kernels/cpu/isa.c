#include "isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <stdint.h>

// State components that the operating system saves: XMM and YMM, and with
// AVX-512 the mask registers and both halves of the ZMM file.
enum { XCR0_AVX = 0x6, XCR0_AVX512 = 0xe6 };

static uint64_t read_xcr0(void)
{
	uint32_t lo, hi;
	__asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
	return (uint64_t)hi << 32 | lo;
}

static int has(uint32_t reg, uint32_t bits) { return (reg & bits) == bits; }

int tm_isa_best(void)
{
	uint32_t a, b, c, d;
	if (!__get_cpuid(1, &a, &b, &c, &d) || !has(c, bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C))
		return TM_ISA_PORTABLE;
	uint64_t xcr0 = read_xcr0();
	if ((xcr0 & XCR0_AVX) != XCR0_AVX || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !has(b, bit_AVX2))
		return TM_ISA_PORTABLE;
	if ((xcr0 & XCR0_AVX512) != XCR0_AVX512 ||
	    !has(b, bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL) || !has(c, bit_AVX512VNNI))
		return TM_ISA_AVX2;
	return TM_ISA_AVX512;
}
#else
int tm_isa_best(void) { return TM_ISA_PORTABLE; }
#endif

const char *tm_isa_name(int isa)
{
	static const char *const names[] = {"portable", "avx2", "avx512"};
	return isa >= 0 && isa < 3 ? names[isa] : "unknown";
}
