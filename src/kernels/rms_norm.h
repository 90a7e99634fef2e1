// Root-mean-square normalisation over the last dim (Zhang & Sennrich 2019, arXiv 1910.07467), as
// Llama rounds it: y = w * round(x / sqrt(mean(x^2) + eps)), statistics in fp32, product in x's
// dtype.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

namespace automoe::kernels {

/// x [..., H] float, weight [H] -> [..., H] in the wider of their dtypes. Differentiable; keeps x
/// and
/// [...] fp32.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

/// sum = x + residual and rms_norm(sum, weight, eps), all of one dtype and shape, in one pass.
/// Returns (sum, normed). Differentiable; keeps the sum and [...] fp32.
std::pair<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x, const at::Tensor& residual,
                                               const at::Tensor& weight, double eps);

}  // namespace automoe::kernels
