// AdamW (Loshchilov & Hutter 2019, arXiv 1711.05101) in fp32, whatever the parameter's dtype.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace automoe::kernels {

struct AdamWOptions {
  double learning_rate = 1e-3;
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  double weight_decay = 0.0;
  int64_t step = 1;  // updates of this parameter, this one included: for the bias correction
};

/// One update in place, with `grad` multiplied by `grad_scale` first (a scalar tensor; undefined:
/// 1). parameter [any], grad [any] of fp32, bf16 or fp16; master, exp_avg, exp_avg_sq [any] fp32;
/// all contiguous and on one device. A half-precision parameter becomes the rounded master, which
/// therefore keeps updates too small for it. An fp32 parameter is its own master: pass it twice.
/// Neither grad nor grad_scale is changed. No host synchronisation.
void adamw_(const at::Tensor& parameter, const at::Tensor& master, const at::Tensor& exp_avg,
            const at::Tensor& exp_avg_sq, const at::Tensor& grad, const at::Tensor& grad_scale,
            const AdamWOptions& options);

}  // namespace automoe::kernels
