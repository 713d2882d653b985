#ifndef TANDEM_DRV_H
#define TANDEM_DRV_H

#define HIDDEN __attribute__((visibility("hidden")))

/* Targets of the trampolines, in the order of the names. */
extern void *td_cuda_table[] HIDDEN;
extern const char *const td_cuda_names[] HIDDEN;
extern const int td_cuda_count HIDDEN;

/* Opens the library at path, looks its functions up and calls cuInit. Returns 0, or writes why the
   driver cannot be used; the table then answers every call with an error. absent is set when the
   library does not exist. */
int td_cuda_load(const char *path, char *why, int size, int *absent);

#endif
