// Rotary position embedding (Su et al. 2021, arXiv 2104.09864).
#pragma once

#include <ATen/core/Tensor.h>

namespace automoe::kernels {

struct RopeOptions {
  bool pairs = false;  // element 2i turns with 2i + 1 (DeepSeek); else i with i + d/2
  int64_t first = 0;   // elements of a head before the d that are rotated
};

/// x [T, heads, D]; cos, sin [T, d/2] in x's dtype, first + d <= D: d elements of each head are
/// rotated and stay where they are, the others pass through. Differentiable; keeps cos and sin
/// only.
at::Tensor apply_rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                      const RopeOptions& options = {});

}  // namespace automoe::kernels
