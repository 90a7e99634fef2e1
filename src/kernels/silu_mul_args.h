// Arguments of the silu_mul kernels; the contract is in silu_mul.h.
#pragma once

#include "kernels/dtype.h"

namespace automoe::kernels {

struct SiluMulFwdArgs {
  const void* gate;  // [rows, width], rows in_stride elements apart:
  const void* up;    // [rows, width], two tensors or two halves of one
  void* out;         // [rows, width] contiguous
  int64_t rows, width, in_stride;
  DType dtype;
};

struct SiluMulBwdArgs {
  const void* d_out;  // [rows, width] contiguous
  const void* gate;   // [rows, width], rows in_stride apart
  const void* up;
  void* d_gate;  // [rows, width], rows grad_stride apart
  void* d_up;
  int64_t rows, width, in_stride, grad_stride;
  DType dtype;
};

/// The backward pass inside an expert layer: out = score * (silu(gate) * up) @ down. Row r of the
/// sorted rows is the (token, slot) pair `pair[r]`; rows at *used and beyond are left alone.
struct SiluMulScoredBwdArgs {
  const void* d_out;    // [rows, width] gradient of silu(gate) * up where every score were 1
  const void* gate_up;  // [rows, 2 width]
  const void* score;    // [pairs] fp32, double for double
  const int32_t* pair;  // [rows]
  const int32_t* used;  // one number
  void* d_gate_up;      // [rows, 2 width]
  void* scaled;         // [rows, width] score * silu(gate) * up
  void* d_score;        // [pairs] as score; written for the pairs of used rows
  int64_t rows, width;
  DType dtype;
};

void silu_mul_fwd_cpu(const SiluMulFwdArgs& args);
void silu_mul_bwd_cpu(const SiluMulBwdArgs& args);
void silu_mul_scored_bwd_cpu(const SiluMulScoredBwdArgs& args);
void silu_mul_fwd_cuda(const SiluMulFwdArgs& args, Stream stream);
void silu_mul_bwd_cuda(const SiluMulBwdArgs& args, Stream stream);
void silu_mul_scored_bwd_cuda(const SiluMulScoredBwdArgs& args, Stream stream);

}  // namespace automoe::kernels
