// AdamW (Loshchilov & Hutter 2019, arXiv 1711.05101) computed in fp32, whatever is stored.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace automoe::kernels {

struct AdamWOptions {
  double learning_rate = 1e-3;
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  double weight_decay = 0.0;
  int64_t step = 1;   // updates of this parameter, this one included: for the bias correction
  uint64_t seed = 0;  // of stochastic rounding; its own for each parameter and step
};

/// One update in place, with `grad` multiplied by `grad_scale` first (a scalar tensor; undefined:
/// 1). parameter [any], grad [any] of fp32, bf16 or fp16; all tensors contiguous and on one device.
/// An update below half the spacing of half precision must not be lost. So either master, exp_avg
/// and exp_avg_sq are fp32, and a half-precision parameter becomes the rounded master (an fp32
/// parameter is its own master: pass it twice); or master is undefined, parameter and moments are
/// bf16, and all three are rounded up or down at random, right on average: a pure function of
/// seed and position. Neither grad nor grad_scale is changed. No host synchronisation.
void adamw_(const at::Tensor& parameter, const at::Tensor& master, const at::Tensor& exp_avg,
            const at::Tensor& exp_avg_sq, const at::Tensor& grad, const at::Tensor& grad_scale,
            const AdamWOptions& options);

}  // namespace automoe::kernels
