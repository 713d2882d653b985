//go:build cuda

#include "lt.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* Numbers of the published interface. */
enum {
    COMPUTE_32F = 68,
    TYPE_32F = 0,
    OP_T = 1,
    DESC_TRANSA = 3,
    DESC_EPILOGUE = 7,
    DESC_BIAS_POINTER = 8,
    EPILOGUE_BIAS = 4,
    PREF_WORKSPACE = 1,
    PREF_ALIGNMENT_A = 5,
    PREF_ALIGNMENT_D = 8,
    ALIGNMENT = 16,
    NOT_SUPPORTED = 15,
};

/* Its functions. Handles, descriptors and layouts are pointers to what only the library knows. */
#define FUNCTIONS(F)                                                                                      \
    F(size_t, GetVersion, (void))                                                                         \
    F(int, Create, (void **))                                                                             \
    F(int, Destroy, (void *))                                                                             \
    F(int, MatmulDescCreate, (void **, int compute, int scale))                                           \
    F(int, MatmulDescDestroy, (void *))                                                                   \
    F(int, MatmulDescSetAttribute, (void *, int, const void *, size_t))                                   \
    F(int, MatrixLayoutCreate, (void **, int type, uint64_t rows, uint64_t cols, int64_t ld))             \
    F(int, MatrixLayoutDestroy, (void *))                                                                 \
    F(int, MatmulPreferenceCreate, (void **))                                                             \
    F(int, MatmulPreferenceDestroy, (void *))                                                             \
    F(int, MatmulPreferenceSetAttribute, (void *, int, const void *, size_t))                             \
    F(int, MatmulAlgoGetHeuristic,                                                                        \
      (void *handle, void *desc, void *a, void *b, void *c, void *d, void *pref, int want, void *results, \
       int *found))                                                                                       \
    F(int, Matmul,                                                                                        \
      (void *handle, void *desc, const void *alpha, const void *a, void *la, const void *b, void *lb,     \
       const void *beta, const void *c, void *lc, void *d, void *ld, const void *algo, void *workspace,   \
       size_t bytes, void *stream))

#define FIELD(type, name, args) type(*name) args;
static struct {
    FUNCTIONS(FIELD)
} lt;

_Static_assert(sizeof(struct td_lt_result) == 96, "the result of a search has 96 bytes");

int td_lt_open(const char *path, char *why, int size) {
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!lib) {
        const char *text = dlerror();
        snprintf(why, size, "%s", text ? text : "dlopen failed");
        return -1;
    }
#define LOOK_UP(type, name, args)                               \
    *(void **)&lt.name = dlsym(lib, "cublasLt" #name);          \
    if (!lt.name) {                                             \
        snprintf(why, size, "%s lacks cublasLt" #name, path);   \
        dlclose(lib);                                           \
        return -1;                                              \
    }
    FUNCTIONS(LOOK_UP)
    return 0;
}

size_t td_lt_version(void) { return lt.GetVersion(); }
int td_lt_create(void **handle) { return lt.Create(handle); }
int td_lt_destroy(void *handle) { return lt.Destroy(handle); }

void td_lt_plan_free(td_lt_plan *p) {
    if (p->desc) lt.MatmulDescDestroy(p->desc);
    if (p->w) lt.MatrixLayoutDestroy(p->w);
    if (p->x) lt.MatrixLayoutDestroy(p->x);
    if (p->y) lt.MatrixLayoutDestroy(p->y);
    memset(p, 0, sizeof *p);
}

static int describe(td_lt_plan *p, const td_lt_problem *q) {
    int r, op = OP_T, epilogue = EPILOGUE_BIAS;
    /* The library counts columns first: its A is w as k x n, transposed, B is x as k x m, D is y as n x m. */
    if ((r = lt.MatmulDescCreate(&p->desc, COMPUTE_32F, TYPE_32F))) return r;
    if ((r = lt.MatmulDescSetAttribute(p->desc, DESC_TRANSA, &op, sizeof op))) return r;
    if (q->bias && (r = lt.MatmulDescSetAttribute(p->desc, DESC_EPILOGUE, &epilogue, sizeof epilogue))) return r;
    if ((r = lt.MatrixLayoutCreate(&p->w, q->in, q->k, q->n, q->stride_w))) return r;
    if ((r = lt.MatrixLayoutCreate(&p->x, q->in, q->k, q->m, q->stride_x))) return r;
    return lt.MatrixLayoutCreate(&p->y, q->out, q->n, q->m, q->stride_y);
}

static int search(void *handle, td_lt_plan *p, const td_lt_problem *q) {
    void *pref = NULL;
    int r = lt.MatmulPreferenceCreate(&pref);
    if (r) return r;
    r = lt.MatmulPreferenceSetAttribute(pref, PREF_WORKSPACE, &q->workspace, sizeof q->workspace);
    uint32_t alignment = ALIGNMENT;
    for (int a = PREF_ALIGNMENT_A; !r && a <= PREF_ALIGNMENT_D; a++)
        r = lt.MatmulPreferenceSetAttribute(pref, a, &alignment, sizeof alignment);
    if (!r)
        r = lt.MatmulAlgoGetHeuristic(handle, p->desc, p->w, p->x, p->y, p->y, pref, TD_LT_CANDIDATES, p->found,
                                      &p->count);
    lt.MatmulPreferenceDestroy(pref);
    if (r) return r;
    int good = 0;
    for (int i = 0; i < p->count; i++)
        if (p->found[i].state == 0) p->found[good++] = p->found[i];
    p->count = good;
    return good ? 0 : NOT_SUPPORTED;
}

int td_lt_plan_make(void *handle, td_lt_plan *p, const td_lt_problem *q) {
    memset(p, 0, sizeof *p);
    p->beta = q->add ? 1 : 0;
    int r = describe(p, q);
    if (!r) r = search(handle, p, q);
    if (r) td_lt_plan_free(p);
    return r;
}

int td_lt_run(void *handle, td_lt_plan *p, uint64_t y, uint64_t x, uint64_t w, uint64_t bias, uint64_t workspace,
              size_t workspace_bytes, void *stream) {
    static const float one = 1;
    if (bias) {
        int r = lt.MatmulDescSetAttribute(p->desc, DESC_BIAS_POINTER, &bias, sizeof bias);
        if (r) return r;
    }
    return lt.Matmul(handle, p->desc, &one, (void *)w, p->w, (void *)x, p->x, &p->beta, (void *)y, p->y, (void *)y,
                     p->y, p->found[p->chosen].algo, (void *)workspace, workspace_bytes, stream);
}
