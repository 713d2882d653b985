//go:build cuda

#include "companion.h"

#include "_cgo_export.h"

CUresult td_launch(CUfunction f, CUstream s, uint64_t *cells, int count, uint32_t gx, uint32_t gy, uint32_t gz,
                   uint32_t bx, uint32_t by, uint32_t bz, uint32_t shared) {
    void *params[TD_MAX_ARGS];
    for (int i = 0; i < count; i++) params[i] = &cells[i];
    return cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, s, params, NULL);
}

CUresult td_launch_shape(CUfunction f, CUstream s, uint64_t *cells, int count, td_shape shape) {
    void *params[TD_MAX_ARGS];
    for (int i = 0; i < count; i++) params[i] = &cells[i];
    CUlaunchAttribute attrs[2];
    CUlaunchConfig c = {
        .gridDimX = shape.grid[0], .gridDimY = shape.grid[1], .gridDimZ = shape.grid[2],
        .blockDimX = shape.block[0], .blockDimY = shape.block[1], .blockDimZ = shape.block[2],
        .sharedMemBytes = shape.shared, .hStream = s, .attrs = attrs,
    };
    if (shape.overlap) {
        attrs[c.numAttrs].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attrs[c.numAttrs++].value.programmaticStreamSerializationAllowed = 1;
    }
    if (shape.cluster[0]) {
        attrs[c.numAttrs].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        attrs[c.numAttrs].value.clusterDim.x = shape.cluster[0];
        attrs[c.numAttrs].value.clusterDim.y = shape.cluster[1];
        attrs[c.numAttrs++].value.clusterDim.z = shape.cluster[2];
    }
    return cuLaunchKernelEx(&c, f, params, NULL);
}

CUresult td_copy_rows(CUstream s, CUdeviceptr dst, size_t dst_pitch, CUdeviceptr src, size_t src_pitch, size_t width, size_t rows) {
    CUDA_MEMCPY2D c = {
        .srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = src, .srcPitch = src_pitch,
        .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = dst, .dstPitch = dst_pitch,
        .WidthInBytes = width, .Height = rows,
    };
    return cuMemcpy2DAsync(&c, s);
}

CUresult td_module_load(CUmodule *mod, const void *image, char *log, size_t log_bytes) {
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)log_bytes};
    return cuModuleLoadDataEx(mod, image, 2, options, values);
}

static void host_func(void *handle) { tdHostFunc((uintptr_t)handle); }

CUresult td_host_func(CUstream s, uintptr_t handle) { return cuLaunchHostFunc(s, host_func, (void *)handle); }
