// Arguments of the causal_conv1d kernels; the contract is in causal_conv1d.h. "Wide" is fp32,
// double for double.
#pragma once

#include "kernels/dtype.h"

namespace automoe::kernels {

/// The kernels' window. With fewer taps the oldest ones have weight 0.
constexpr int kTaps = 4;

struct CausalConv1dFwdArgs {
  const void* x;           // [tokens, channels], rows x_stride elements apart
  const void* weight;      // [kTaps, channels] wide, the current token's tap last
  const void* bias;        // [channels] wide
  const int32_t* offsets;  // [documents + 1]
  void* y;                 // [tokens, channels]
  int64_t tokens, channels, x_stride, documents;
  DType dtype;
};

struct CausalConv1dBwdArgs {
  const void* dy;          // [tokens, channels]
  const void* x;           // as in the forward pass
  const void* weight;      // [kTaps, channels] wide
  const void* bias;        // [channels] wide
  const int32_t* offsets;  // [documents + 1]
  void* dx;                // [tokens, channels]
  void* sums;              // [parts, kTaps + 1, channels] wide: gradients of weight, then bias
  int64_t tokens, channels, x_stride, documents, parts;
  DType dtype;
};

/// How many parts the backward kernels split the tokens into.
int64_t causal_conv1d_parts_cpu(int64_t tokens);
int64_t causal_conv1d_parts_cuda(int64_t tokens);

void causal_conv1d_fwd_cpu(const CausalConv1dFwdArgs& args);
void causal_conv1d_bwd_cpu(const CausalConv1dBwdArgs& args);
void causal_conv1d_fwd_cuda(const CausalConv1dFwdArgs& args, Stream stream);
void causal_conv1d_bwd_cuda(const CausalConv1dBwdArgs& args, Stream stream);

}  // namespace automoe::kernels
