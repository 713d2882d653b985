//go:build cuda

#include "drv.h"

#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* Answers of the table while there is no driver. They ignore their arguments, which the calling
   conventions of both processors allow. */
static CUresult answer_success(void) { return CUDA_SUCCESS; }
static CUresult answer_absent(void) { return CUDA_ERROR_STUB_LIBRARY; }
static CUresult answer_missing(void) { return CUDA_ERROR_NOT_FOUND; }

static void fill_absent(void) {
    for (int i = 0; i < td_cuda_count; i++)
        td_cuda_table[i] = strcmp(td_cuda_names[i], "cuInit") ? (void *)answer_absent : (void *)answer_success;
}

/* Before main, so that the binding's own call of cuInit finds a function. */
__attribute__((constructor)) static void before_main(void) { fill_absent(); }

static int init_driver(void *lib, char *why, int size) {
    CUresult (*init)(unsigned int) = (CUresult(*)(unsigned int))dlsym(lib, "cuInit");
    if (!init) {
        snprintf(why, size, "the library has no cuInit");
        return -1;
    }
    CUresult r = init(0);
    if (r == CUDA_SUCCESS) return 0;
    CUresult (*name_of)(CUresult, const char **) =
        (CUresult(*)(CUresult, const char **))dlsym(lib, "cuGetErrorName");
    const char *name = NULL;
    if (!name_of || name_of(r, &name) != CUDA_SUCCESS || !name) name = "an error";
    snprintf(why, size, "cuInit failed with %s (%d)", name, (int)r);
    return -1;
}

int td_cuda_load(const char *path, char *why, int size, int *absent) {
    *absent = 0;
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!lib) {
        const char *text = dlerror();
        *absent = text && strstr(text, "No such file") != NULL && strncmp(text, path, strlen(path)) == 0;
        snprintf(why, size, "%s", text ? text : "dlopen failed");
        return -1;
    }
    if (init_driver(lib, why, size)) return -1; /* the library stays open: some drivers leave threads */
    for (int i = 0; i < td_cuda_count; i++) {
        void *f = dlsym(lib, td_cuda_names[i]);
        if (strcmp(td_cuda_names[i], "cuInit") == 0) f = (void *)answer_success;
        td_cuda_table[i] = f ? f : (void *)answer_missing;
    }
    return 0;
}
