/* cuBLASLt behind a table of functions, and one product as one call. The few types and numbers of
   its interface that we need are declared in lt.c. */
#ifndef TANDEM_GEMM_LT_H
#define TANDEM_GEMM_LT_H

#include <stddef.h>
#include <stdint.h>

#define TD_LT_CANDIDATES 8

/* y[m,n] = x[m,k] w[n,k]^T, rows one after the other; strides in elements. */
typedef struct td_lt_problem {
    uint64_t m, n, k;
    int64_t stride_x, stride_w, stride_y;
    int in, out; /* types as in cudaDataType */
    int add;     /* adds to y instead of replacing it */
    int bias;    /* adds a vector of n elements of y's type */
    size_t workspace;
} td_lt_problem;

/* A way to compute a problem: opaque to callers but for the two counts. */
typedef struct td_lt_plan {
    void *desc, *w, *x, *y;
    struct td_lt_result {
        uint64_t algo[8];
        size_t workspace;
        int state;
        float waves;
        int reserved[4];
    } found[TD_LT_CANDIDATES];
    int count;  /* candidates, the library's best guess first */
    int chosen; /* the one that runs */
    float beta;
} td_lt_plan;

/* Each returns 0, or the library's status; -1 when it could not be opened, with why filled. */
int td_lt_open(const char *path, char *why, int size);
size_t td_lt_version(void);
int td_lt_create(void **handle);
int td_lt_destroy(void *handle);
int td_lt_plan_make(void *handle, td_lt_plan *plan, const td_lt_problem *q);
void td_lt_plan_free(td_lt_plan *plan);
int td_lt_run(void *handle, td_lt_plan *plan, uint64_t y, uint64_t x, uint64_t w, uint64_t bias, uint64_t workspace,
              size_t workspace_bytes, void *stream);

#endif
