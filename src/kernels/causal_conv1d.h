// The short convolution in front of a state-space scan, with its SiLU.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/documents.h"

namespace automoe::kernels {

constexpr int64_t kMaxConvKernel = 4;

/// silu(bias_c + sum_k weight[c, k] x[t - K + 1 + k, c]), where a token sees nothing before its
/// document. x [T, C] with dense rows, weight [C, K] with K up to kMaxConvKernel, bias [C] or
/// undefined -> [T, C]. Computed in fp32, rounded once to x's dtype. Differentiable; keeps its
/// inputs.
at::Tensor causal_conv1d(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                         const Documents& documents);

}  // namespace automoe::kernels
