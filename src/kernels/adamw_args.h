// Arguments of the AdamW kernels; the contract is in adamw.h. All arrays are contiguous.
#pragma once

#include "kernels/dtype.h"

namespace automoe::kernels {

struct AdamWArgs {
  void* parameter;    // [count]; null where it is the master itself
  float* master;      // [count]
  float* exp_avg;     // [count]
  float* exp_avg_sq;  // [count]
  const void* grad;   // [count]
  int64_t count;
  DType parameter_dtype, grad_dtype;
  float grad_scale;
  float keep;  // 1 - learning_rate * weight_decay
  float beta1, beta2;
  float rate;             // learning_rate / (1 - beta1^step)
  float root_correction;  // 1 / sqrt(1 - beta2^step)
  float epsilon;
};

void adamw_cpu(const AdamWArgs& args);

/// `device_scale`: one number on the device that multiplies grad_scale, or null.
void adamw_cuda(const AdamWArgs& args, const float* device_scale, Stream stream);

}  // namespace automoe::kernels
