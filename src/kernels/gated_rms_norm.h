// The norm of Mamba-2 mixers (Dao and Gu 2024, arXiv 2405.21060): gate first, then RMSNorm of
// groups.
#pragma once

#include <ATen/core/Tensor.h>

namespace automoe::kernels {

/// weight * v / sqrt(mean(v^2) + eps) with v = x * silu(gate), the mean over each of `groups` equal
/// parts of a row. x, gate [T, W] of one dtype, weight [W] -> [T, W] in x's dtype. Computed in
/// fp32, rounded once. Differentiable; keeps its inputs and the groups' inverse roots.
at::Tensor gated_rms_norm(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight,
                          int64_t groups, double eps);

}  // namespace automoe::kernels
