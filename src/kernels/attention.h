// Causal scaled dot-product attention with grouped queries over packed documents.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/documents.h"

namespace automoe::kernels {

struct AttentionOptions {
  double scale = 1.0;  // multiplies q k^T
  int64_t window =
      0;  // > 0: a query sees itself and the window - 1 keys before it; 0: all before it
};

/// q [T, Hq, D], k [T, Hkv, D], v [T, Hkv, Dv], Hq a multiple of Hkv -> [T, Hq, Dv]. A query sees
/// the keys of its own document up to itself. Query head h uses key head h / (Hq / Hkv).
/// sinks [Hq], float, or undefined: one more score per head that every query sees; it takes its
/// share of the softmax and adds no value (Xiao et al. 2023, arXiv 2309.17453; learned in GPT-OSS).
/// Differentiable; memory grows with T.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const Documents& documents, const AttentionOptions& options,
                     const at::Tensor& sinks = {});

}  // namespace automoe::kernels
