// Root-mean-square normalisation over the last dim (Zhang & Sennrich 2019, arXiv 1910.07467), as Llama
// rounds it: y = w * round(x / sqrt(mean(x^2) + eps)), statistics in fp32, product in x's dtype.
#pragma once

#include <ATen/core/Tensor.h>

namespace automoe::kernels {

/// x [..., H] float, weight [H] of the same dtype -> [..., H]. Differentiable; keeps x and [...] fp32.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

}  // namespace automoe::kernels
