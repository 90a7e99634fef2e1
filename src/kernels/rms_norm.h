// Root-mean-square normalisation over the last dim (Zhang & Sennrich 2019, arXiv 1910.07467):
// y = w * x / sqrt(mean(x^2) + eps), statistics in fp32.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "kernels/rms_norm_args.h"

namespace automoe::kernels {

/// x [..., H] float, weight [H] -> [..., H] in the wider of their dtypes, in x's with kResultOnly.
/// Differentiable; keeps x and [...] fp32.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps,
                    NormRounding rounding = NormRounding::kNormalised);

/// sum = x + residual and rms_norm(sum, weight, eps, kNormalised), all of one dtype and shape, in
/// one pass. Returns (sum, normed). Differentiable; keeps the sum and [...] fp32.
std::pair<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x, const at::Tensor& residual,
                                               const at::Tensor& weight, double eps);

}  // namespace automoe::kernels
