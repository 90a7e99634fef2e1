// Errors of the CUDA runtime become RuntimeError.
#pragma once

#include <cuda_runtime.h>

#include "automoe/error.h"

#define AUTOMOE_CUDA_CHECK(call)                                                                \
  do {                                                                                          \
    const cudaError_t automoe_cuda_error = (call);                                              \
    AUTOMOE_CHECK(automoe_cuda_error == cudaSuccess, "[cuda] ", #call, " failed at ", __FILE__, \
                  ":", __LINE__, ": ", cudaGetErrorString(automoe_cuda_error));                 \
  } while (false)

namespace automoe::kernels::cuda {

/// Streaming multiprocessors of the current device.
inline int64_t num_sms() {
  int device = 0, count = 0;
  AUTOMOE_CUDA_CHECK(cudaGetDevice(&device));
  AUTOMOE_CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

/// Every launcher ends with this: a launch that the device refused throws here.
inline void check_launch() { AUTOMOE_CUDA_CHECK(cudaGetLastError()); }

}  // namespace automoe::kernels::cuda
