// Arguments of the AdamW kernels; the contract is in adamw.h. All arrays are contiguous.
#pragma once

#include "core/mix.h"
#include "kernels/dtype.h"

namespace automoe::kernels {

struct AdamWArgs {
  void* parameter;   // [count]; null where it is the master itself
  float* master;     // [count]; null where parameter and moments are bf16, rounded at random
  void* exp_avg;     // [count] fp32, or bf16 without master
  void* exp_avg_sq;  // [count] as exp_avg
  const void* grad;  // [count]
  int64_t count;
  uint64_t seed;
  DType parameter_dtype, grad_dtype;
  float grad_scale;
  float keep;  // 1 - learning_rate * weight_decay
  float beta1, beta2;
  float rate;             // learning_rate / (1 - beta1^step)
  float root_correction;  // 1 / sqrt(1 - beta2^step)
  float epsilon;
};

/// The upper half of fp32 `bits`, rounded up with the probability that `random` out of 2^16 gives;
/// infinities and NaN stay as they are.
constexpr uint16_t rounded_at_random(uint32_t bits, uint32_t random) {
  const bool finite = (bits & 0x7F800000u) != 0x7F800000u;
  return static_cast<uint16_t>((bits + (finite ? random & 0xFFFFu : 0)) >> 16);
}

void adamw_cpu(const AdamWArgs& args);

/// `device_scale`: one number on the device that multiplies grad_scale, or null.
void adamw_cuda(const AdamWArgs& args, const float* device_scale, Stream stream);

}  // namespace automoe::kernels
