#include "limits.h"

#include <stdint.h>
#include <time.h>

#include "isa.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// Less is read several times, or starting the workers would count.
enum { READ_LEAST = 32 << 20 };

static double seconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

typedef struct {
	const char *memory;
	size_t bytes;
	int isa, kind, threads;
	long rounds;
	volatile uint64_t sink; // so that nothing is left out
} job;

static uint64_t read_words(const char *p, size_t n)
{
	uint64_t s[8] = {0};
	for (size_t i = 0; i + 64 <= n; i += 64) {
		const uint64_t *w = (const uint64_t *)(const void *)(p + i);
		__builtin_prefetch(p + i + 4096);
		for (int j = 0; j < 8; j++) s[j] ^= w[j];
	}
	return s[0] ^ s[1] ^ s[2] ^ s[3] ^ s[4] ^ s[5] ^ s[6] ^ s[7];
}

#if defined(__x86_64__)
// Memory that follows may be of no one: a prefetch of it does nothing.
__attribute__((target("avx512f"))) static uint64_t read_avx512(const char *p, size_t n)
{
	__m512i s[8];
	for (int j = 0; j < 8; j++) s[j] = _mm512_setzero_si512();
	for (size_t i = 0; i + 512 <= n; i += 512)
#pragma GCC unroll 8
		for (int j = 0; j < 8; j++) {
			_mm_prefetch(p + i + j * 64 + 4096, _MM_HINT_T0);
			s[j] = _mm512_xor_si512(s[j], _mm512_loadu_si512(p + i + j * 64));
		}
	for (int j = 1; j < 8; j++) s[0] = _mm512_xor_si512(s[0], s[j]);
	return (uint64_t)_mm512_reduce_add_epi64(s[0]);
}

// Each body has enough chains to fill the units; a round is CHAINS instructions. The
// chains are variables of their own: those of an array would live in memory, and the
// rate would be that of storing and loading.
enum { CHAINS = 12 };
#define EACH(what, with) \
	what(with, 0) what(with, 1) what(with, 2) what(with, 3) what(with, 4) what(with, 5) \
	what(with, 6) what(with, 7) what(with, 8) what(with, 9) what(with, 10) what(with, 11)
#define CLEAR(zero, i) a##i = zero;
#define STEP(step, i) a##i = step(a##i, x); __asm__ volatile("" : "+v"(a##i));
#define SUM(done, i) sum = done(sum, a##i);
#define COMPUTE(name, features, type, zero, step, done)                                  \
	__attribute__((target(features))) static uint64_t name(long rounds)              \
	{                                                                                \
		type a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, x = zero, sum = zero; \
		EACH(CLEAR, zero)                                                        \
		__asm__ volatile("" : "+v"(x)); /* the compiler must not know it */      \
		for (long r = 0; r < rounds; r++) {                                      \
			EACH(STEP, step)                                                 \
		}                                                                        \
		EACH(SUM, done)                                                          \
		uint64_t out;                                                            \
		__builtin_memcpy(&out, &sum, sizeof out);                                \
		return out;                                                              \
	}
#define V512 "avx512f,avx512bw,avx512vnni"
#define F512(a, x) _mm512_fmadd_ps(x, x, a)
#define W512(a, x) _mm512_dpwssd_epi32(a, x, x)
#define B512(a, x) _mm512_dpbusd_epi32(a, x, x)
#define F256(a, x) _mm256_fmadd_ps(x, x, a)
#define W256(a, x) _mm256_add_epi32(a, _mm256_madd_epi16(x, a))
COMPUTE(f32_avx512, V512, __m512, _mm512_setzero_ps(), F512, _mm512_add_ps)
COMPUTE(int16_avx512, V512, __m512i, _mm512_setzero_si512(), W512, _mm512_add_epi32)
COMPUTE(int8_avx512, V512, __m512i, _mm512_setzero_si512(), B512, _mm512_add_epi32)
COMPUTE(f32_avx2, "avx2,fma", __m256, _mm256_setzero_ps(), F256, _mm256_add_ps)
COMPUTE(int16_avx2, "avx2,fma", __m256i, _mm256_setzero_si256(), W256, _mm256_add_epi32)

typedef struct {
	uint64_t (*run)(long rounds);
	int ops; // of an instruction
} unit;

// int8_tiles multiplies full tiles, into four sums in turn.
static uint64_t int8_tiles(long rounds)
{
	struct {
		uint8_t palette, start_row, reserved[14];
		uint16_t colsb[16];
		uint8_t rows[16];
	} c = {.palette = 1};
	for (int t = 0; t < 6; t++) {
		c.rows[t] = 16;
		c.colsb[t] = 64;
	}
	__asm__ volatile("ldtilecfg %0" ::"m"(c));
	for (long r = 0; r < rounds; r++)
		for (int i = 0; i < CHAINS; i += 4)
			__asm__ volatile("tdpbssd %tmm5, %tmm4, %tmm0\n\ttdpbssd %tmm5, %tmm4, %tmm1\n\t"
					 "tdpbssd %tmm5, %tmm4, %tmm2\n\ttdpbssd %tmm5, %tmm4, %tmm3");
	__asm__ volatile("tilerelease");
	return 0;
}

static unit unit_of(int isa, int kind)
{
	if (isa == TM_ISA_AMX && kind == TM_LIMIT_INT8) return (unit){int8_tiles, 2 * 16 * 16 * 64};
	if (isa >= TM_ISA_AVX512) {
		static const unit all[] = {{f32_avx512, 32}, {int16_avx512, 64}, {int8_avx512, 128}};
		return all[kind - TM_LIMIT_F32];
	}
	static const unit all[] = {{f32_avx2, 16}, {int16_avx2, 32}, {0, 0}};
	return isa == TM_ISA_AVX2 ? all[kind - TM_LIMIT_F32] : (unit){0, 0};
}
#endif

static void read_worker(void *ctx, int worker)
{
	job *j = ctx;
	const size_t part = j->bytes / (size_t)j->threads / 512 * 512;
	const char *p = j->memory + part * (size_t)worker;
	for (long r = 0; r < j->rounds; r++) {
#if defined(__x86_64__)
		if (j->isa >= TM_ISA_AVX512) {
			j->sink = read_avx512(p, part);
			continue;
		}
#endif
		j->sink = read_words(p, part);
	}
}

double tm_limit_read(tm_pool *pool, const void *memory, size_t bytes)
{
	job j = {.memory = memory, .bytes = bytes, .isa = tm_isa_best(), .threads = tm_pool_threads(pool)};
	j.rounds = bytes < READ_LEAST ? (long)(READ_LEAST / bytes) : 1;
	const double start = seconds();
	tm_pool_run(pool, read_worker, &j);
	const size_t read = bytes / (size_t)j.threads / 512 * 512 * (size_t)j.threads;
	return (double)read * (double)j.rounds / (seconds() - start);
}

static void compute_worker(void *ctx, int worker)
{
	(void)worker;
#if defined(__x86_64__)
	job *j = ctx;
	j->sink = unit_of(j->isa, j->kind).run(j->rounds);
#else
	(void)ctx;
#endif
}

double tm_limit_compute(tm_pool *pool, int isa, int kind)
{
#if defined(__x86_64__)
	const unit u = unit_of(isa, kind);
	if (!u.run) return 0;
	job j = {.isa = isa, .kind = kind, .threads = tm_pool_threads(pool), .rounds = 200000};
	const double start = seconds();
	tm_pool_run(pool, compute_worker, &j);
	return (double)u.ops * CHAINS * (double)j.rounds * j.threads / (seconds() - start);
#else
	(void)pool, (void)isa, (void)kind, (void)compute_worker;
	return 0;
#endif
}
