// Attention written out, a block of queries at a time: for what the library has no kernel for.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/attention.h"

namespace automoe::kernels {

/// attention(), on every device and in every float dtype. Statistics, products and gradients are
/// fp32 (double for double). Keeps q, k, v, the result and the log-sum-exp; the largest temporary
/// is a block of queries times the keys that it sees.
at::Tensor blockwise_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const Documents& documents, const AttentionOptions& options,
                               const at::Tensor& sinks);

}  // namespace automoe::kernels
