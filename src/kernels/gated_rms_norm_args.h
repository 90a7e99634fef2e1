// Arguments of the gated_rms_norm kernels; the contract is in gated_rms_norm.h. "Wide" is fp32,
// double for double. A row is one group of one token: there are tokens * groups of them.
#pragma once

#include "kernels/dtype.h"

namespace automoe::kernels {

struct GatedRmsNormFwdArgs {
  const void* x;       // [tokens, groups, width]
  const void* gate;    // [tokens, groups, width], tokens gate_stride elements apart
  const void* weight;  // [groups, width] wide
  void* y;             // [tokens, groups, width]
  void* inverse_rms;   // [tokens, groups] wide
  int64_t tokens, groups, width, gate_stride;
  double eps;
  DType dtype;
};

struct GatedRmsNormBwdArgs {
  const void* dy;           // [tokens, groups, width]
  const void* x;            // as in the forward pass
  const void* gate;         // as in the forward pass
  const void* weight;       // [groups, width] wide
  const void* inverse_rms;  // [tokens, groups] wide
  void* dx;                 // [tokens, groups, width]
  void* dgate;              // [tokens, groups, width]
  void* dweight_parts;      // [parts, groups, width] wide
  int64_t tokens, groups, width, gate_stride, parts;
  DType dtype;
};

/// How many parts the backward kernels split the tokens into.
int64_t gated_rms_norm_parts_cpu(int64_t tokens);
int64_t gated_rms_norm_parts_cuda(int64_t tokens);

void gated_rms_norm_fwd_cpu(const GatedRmsNormFwdArgs& args);
void gated_rms_norm_bwd_cpu(const GatedRmsNormBwdArgs& args);
void gated_rms_norm_fwd_cuda(const GatedRmsNormFwdArgs& args, Stream stream);
void gated_rms_norm_bwd_cuda(const GatedRmsNormBwdArgs& args, Stream stream);

}  // namespace automoe::kernels
