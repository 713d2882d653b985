//go:build cuda

#include "nccl.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum { SUM = 0, BYTES = 1 };

typedef struct {
    char bytes[TD_NCCL_ID_BYTES];
} unique_id;

/* The beginning of the library's configuration, as its version 2.14 had it. Newer ones look at the
   size and fill the rest with defaults. */
typedef struct {
    size_t size;
    unsigned int magic, version;
    int blocking;
} config;

#define FUNCTIONS(F)                                                                                 \
    F(int, GetUniqueId, (unique_id *))                                                               \
    F(int, CommInitRankConfig, (void **comm, int size, unique_id id, int rank, config *))            \
    F(int, CommGetAsyncError, (void *comm, int *state))                                              \
    F(int, CommDestroy, (void *comm))                                                                \
    F(int, CommAbort, (void *comm))                                                                  \
    F(int, AllReduce, (const void *src, void *dst, size_t count, int type, int op, void *comm, void *stream)) \
    F(int, AllGather, (const void *src, void *dst, size_t count, int type, void *comm, void *stream))         \
    F(int, ReduceScatter, (const void *src, void *dst, size_t count, int type, int op, void *comm, void *stream)) \
    F(int, Send, (const void *src, size_t count, int type, int peer, void *comm, void *stream))      \
    F(int, Recv, (void *dst, size_t count, int type, int peer, void *comm, void *stream))            \
    F(int, GroupStart, (void))                                                                       \
    F(int, GroupEnd, (void))                                                                         \
    F(const char *, GetErrorString, (int))

#define FIELD(type, name, args) type(*name) args;
static struct {
    FUNCTIONS(FIELD)
} nccl;

int td_nccl_open(const char *path, char *why, int size) {
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!lib) {
        const char *text = dlerror();
        snprintf(why, size, "%s", text ? text : "dlopen failed");
        return -1;
    }
#define LOOK_UP(type, name, args)                             \
    *(void **)&nccl.name = dlsym(lib, "nccl" #name);          \
    if (!nccl.name) {                                         \
        snprintf(why, size, "%s lacks nccl" #name, path);     \
        dlclose(lib);                                         \
        return -1;                                            \
    }
    FUNCTIONS(LOOK_UP)
    return 0;
}

int td_nccl_unique(void *id) { return nccl.GetUniqueId(id); }

int td_nccl_init(void **comm, int size, int rank, const void *id) {
    unique_id u;
    memcpy(&u, id, sizeof u);
    /* Not blocking: a rank that never comes must not hold the others for ever. */
    config c = {.size = sizeof c, .magic = 0xcafebeef, .version = 21400, .blocking = 0};
    return nccl.CommInitRankConfig(comm, size, u, rank, &c);
}

int td_nccl_state(void *comm) {
    int state = 0, r = nccl.CommGetAsyncError(comm, &state);
    return r ? r : state;
}

int td_nccl_destroy(void *comm) { return nccl.CommDestroy(comm); }
int td_nccl_abort(void *comm) { return nccl.CommAbort(comm); }

int td_nccl_all_reduce(void *comm, uint64_t dst, uint64_t src, size_t count, int type, void *stream) {
    return nccl.AllReduce((void *)src, (void *)dst, count, type, SUM, comm, stream);
}

int td_nccl_all_gather(void *comm, uint64_t dst, uint64_t src, size_t count, int type, void *stream) {
    return nccl.AllGather((void *)src, (void *)dst, count, type, comm, stream);
}

int td_nccl_reduce_scatter(void *comm, uint64_t dst, uint64_t src, size_t count, int type, void *stream) {
    return nccl.ReduceScatter((void *)src, (void *)dst, count, type, SUM, comm, stream);
}

int td_nccl_all_to_all(void *comm, uint64_t dst, uint64_t src, const size_t *to, const size_t *from, int size,
                       void *stream) {
    int r = nccl.GroupStart();
    for (int peer = 0; !r && peer < size; peer++) {
        if (to[peer]) r = nccl.Send((void *)src, to[peer], BYTES, peer, comm, stream);
        if (!r && from[peer]) r = nccl.Recv((void *)dst, from[peer], BYTES, peer, comm, stream);
        src += to[peer];
        dst += from[peer];
    }
    int end = nccl.GroupEnd();
    return r ? r : end;
}

const char *td_nccl_text(int status) { return nccl.GetErrorString(status); }
