/* NCCL behind a table of functions; the few types and numbers of its interface that we need are
   declared in nccl.c. */
#ifndef TANDEM_NCCL_H
#define TANDEM_NCCL_H

#include <stddef.h>
#include <stdint.h>

#define TD_NCCL_ID_BYTES 128
#define TD_NCCL_IN_PROGRESS 7

/* Each returns 0, or the library's number; td_nccl_open returns -1 with why filled. */
int td_nccl_open(const char *path, char *why, int size);
int td_nccl_unique(void *id);
int td_nccl_init(void **comm, int size, int rank, const void *id);
int td_nccl_state(void *comm);
int td_nccl_destroy(void *comm);
int td_nccl_abort(void *comm);
int td_nccl_all_reduce(void *comm, uint64_t dst, uint64_t src, size_t count, int type, void *stream);
int td_nccl_all_gather(void *comm, uint64_t dst, uint64_t src, size_t count, int type, void *stream);
int td_nccl_reduce_scatter(void *comm, uint64_t dst, uint64_t src, size_t count, int type, void *stream);
/* to and from are bytes for each peer. */
int td_nccl_all_to_all(void *comm, uint64_t dst, uint64_t src, const size_t *to, const size_t *from, int size,
                       void *stream);
const char *td_nccl_text(int status);

#endif
