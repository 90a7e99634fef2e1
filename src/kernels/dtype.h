// What kernels know of a tensor besides its pointer. Needs no Torch header: .cu files include it.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace automoe::kernels {

enum class DType : uint8_t { kFloat32, kFloat64, kBFloat16, kFloat16 };  // kFloat64: CPU only

/// Bytes of an element.
constexpr int64_t size_of(DType dtype) {
  return dtype == DType::kFloat64 ? 8 : dtype == DType::kFloat32 ? 4 : 2;
}

using Stream = CUstream_st*;  // the same type as cudaStream_t

}  // namespace automoe::kernels
