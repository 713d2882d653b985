#include "isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <stdint.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

// State components that the operating system saves: XMM and YMM, and with
// AVX-512 the mask registers and both halves of the ZMM file.
enum { XCR0_AVX = 0x6, XCR0_AVX512 = 0xe6, XCR0_AMX = 0x60000 };

static uint64_t read_xcr0(void)
{
	uint32_t lo, hi;
	__asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
	return (uint64_t)hi << 32 | lo;
}

static int has(uint32_t reg, uint32_t bits) { return (reg & bits) == bits; }

// may_use_tiles asks the system for them, for all threads of the process: those
// that use them get room for 8 KiB more of state.
static int may_use_tiles(void)
{
#if defined(__linux__)
	enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
	return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
	return 0;
#endif
}

// has_tiles tells whether there are 8 tiles of 16 rows of 64 bytes, and products of
// bytes in them; d7 is what leaf 7 has in edx.
static int has_tiles(uint64_t xcr0, uint32_t d7)
{
	enum { AMX_TILE = 1 << 24, AMX_INT8 = 1 << 25 };
	uint32_t a, b, c, d;
	if ((xcr0 & XCR0_AMX) != XCR0_AMX || !has(d7, AMX_TILE | AMX_INT8) || !__get_cpuid_count(0x1d, 1, &a, &b, &c, &d))
		return 0;
	return b >> 16 >= 8 && (b & 0xffff) == 64 && (c & 0xffff) >= 16 && may_use_tiles();
}

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
	return has_tiles(xcr0, d) ? TM_ISA_AMX : TM_ISA_AVX512;
}
#else
int tm_isa_best(void) { return TM_ISA_PORTABLE; }
#endif

const char *tm_isa_name(int isa)
{
	static const char *const names[] = {"portable", "avx2", "avx512", "amx", "amx-model"};
	return isa >= 0 && isa < 5 ? names[isa] : "unknown";
}
