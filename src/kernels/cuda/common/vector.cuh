// Element types, and vectors of up to 16 bytes that one instruction loads or stores.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "automoe/error.h"
#include "kernels/dtype.h"

namespace automoe::kernels::cuda {

template <typename T>
struct Tag {};

/// Calls visit(Tag<T>) for the element type of `dtype`.
template <typename F>
void visit_float(DType dtype, F&& visit) {
  switch (dtype) {
    case DType::kFloat32:
      return visit(Tag<float>{});
    case DType::kBFloat16:
      return visit(Tag<__nv_bfloat16>{});
    case DType::kFloat16:
      return visit(Tag<__half>{});
    case DType::kFloat64:
      break;
  }
  throw ValueError("[cuda] float32, bfloat16 or float16 expected, got float64");
}

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float to_float(__half x) { return __half2float(x); }

template <typename T>
__device__ inline T from_float(float x) {
  if constexpr (sizeof(T) == 4)
    return x;
  else if constexpr (std::is_same_v<T, __half>)
    return __float2half_rn(x);
  else
    return __float2bfloat16_rn(x);
}

/// e^x: fast where the result is rounded to half precision, accurate in fp32.
template <typename T>
__device__ inline float exponential(float x) {
  if constexpr (sizeof(T) == 4)
    return expf(x);
  else
    return __expf(x);
}

template <typename T, int kSize>
struct alignas(sizeof(T) * kSize) Vector {
  T values[kSize];

  __device__ float operator[](int i) const { return to_float(values[i]); }
  __device__ void set(int i, float x) { values[i] = from_float<T>(x); }
};

template <typename T>
constexpr int kFullVector = 16 / sizeof(T);

/// Whether 16-byte vectors may be used: every address and the row's bytes are multiples of 16.
template <typename... Pointers>
bool fits_vectors(int64_t row_bytes, const Pointers*... pointers) {
  return row_bytes % 16 == 0 && (... && (reinterpret_cast<uintptr_t>(pointers) % 16 == 0));
}

/// Calls visit(Tag<T>, integral constant) with full vectors if `vectors`, else with single
/// elements.
template <typename F>
void visit_vectors(DType dtype, bool vectors, F&& visit) {
  visit_float(dtype, [&]<typename T>(Tag<T> tag) {
    if (vectors)
      visit(tag, std::integral_constant<int, kFullVector<T>>{});
    else
      visit(tag, std::integral_constant<int, 1>{});
  });
}

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace automoe::kernels::cuda
