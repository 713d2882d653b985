/* What the driver offers and the binding gorgonia.org/cu lacks, each as one call from Go. */
#ifndef TANDEM_GPU_COMPANION_H
#define TANDEM_GPU_COMPANION_H

#include <cuda.h>

/* Most arguments that a kernel takes. */
#define TD_MAX_ARGS 48

/* The shape of a launch, in one piece so that a call stays cheap. */
typedef struct td_shape {
    uint32_t grid[3], block[3], cluster[3];
    uint32_t shared;  /* dynamic shared memory in bytes */
    uint32_t overlap; /* the kernel may start before the one before it ends and waits for it by itself */
} td_shape;

CUresult td_launch(CUfunction f, CUstream s, uint64_t *cells, int count, uint32_t gx, uint32_t gy, uint32_t gz,
                   uint32_t bx, uint32_t by, uint32_t bz, uint32_t shared);
CUresult td_launch_shape(CUfunction f, CUstream s, uint64_t *cells, int count, td_shape shape);
CUresult td_module_load(CUmodule *mod, const void *image, char *log, size_t log_bytes);
CUresult td_copy_rows(CUstream s, CUdeviceptr dst, size_t dst_pitch, CUdeviceptr src, size_t src_pitch, size_t width, size_t rows);
CUresult td_host_func(CUstream s, uintptr_t handle);

#endif
