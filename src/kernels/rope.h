// Rotary position embedding (Su et al. 2021, arXiv 2104.09864), half layout: element i is rotated
// with element i + D/2.
#pragma once

#include <ATen/core/Tensor.h>

namespace automoe::kernels {

/// x [T, heads, D]; cos, sin [T, d/2] in x's dtype, d <= D: the first d elements of each head are
/// rotated, the rest pass through. Differentiable; keeps cos and sin only.
at::Tensor apply_rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

}  // namespace automoe::kernels
