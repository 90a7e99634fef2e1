// Arguments of the rope kernel; the contract is in rope.h.
#pragma once

#include "kernels/dtype.h"

namespace automoe::kernels {

struct RopeArgs {
  const void* x;    // [tokens, heads, dim], elements of a head adjacent
  const void* cos;  // [tokens, half] contiguous
  const void* sin;
  void* y;  // [tokens, heads, dim] contiguous
  int64_t tokens, heads, dim, half;
  int64_t token_stride, head_stride;  // of x
  int64_t first;                      // elements of a head before the rotated ones
  bool pairs;                         // 2i turns with 2i + 1; else i with i + half
  bool inverse;                       // rotate by the negative angle
  DType dtype;
};

void rope_cpu(const RopeArgs& args);
void rope_cuda(const RopeArgs& args, Stream stream);

}  // namespace automoe::kernels
