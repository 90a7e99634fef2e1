#include "kernels/adamw_args.h"
#include "kernels/cpu/loops.h"

namespace automoe::kernels {
namespace {

constexpr int64_t kBlock = 1024;  // elements whose widened gradient stays in the L1 cache

// NOTE: this file is compiled with -fno-math-errno: sqrt that may set errno keeps the loop scalar,
// and the update then takes six times as long.
AUTOMOE_VECTOR_CLONES
void update(float* __restrict master, float* __restrict exp_avg, float* __restrict exp_avg_sq,
            const float* __restrict grad, int64_t count, const AdamWArgs& given) {
  const AdamWArgs c = given;  // a copy, which the stores below cannot alias
  for (int64_t i = 0; i < count; ++i) {
    const float g = grad[i] * c.grad_scale;
    const float m = exp_avg[i] + (g - exp_avg[i]) * (1.0f - c.beta1);
    const float v = exp_avg_sq[i] * c.beta2 + g * g * (1.0f - c.beta2);
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    master[i] = master[i] * c.keep - c.rate * m / (std::sqrt(v) * c.root_correction + c.epsilon);
  }
}

template <typename T>
void widen_block(float* to, const void* from, int64_t begin, int64_t count) {
  const T* source = static_cast<const T*>(from) + begin;
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(source[i]);
}

template <typename T>
void round_block(void* to, const float* from, int64_t begin, int64_t count) {
  T* target = static_cast<T*>(to) + begin;
  for (int64_t i = 0; i < count; ++i) target[i] = static_cast<T>(from[begin + i]);
}

// Blocks of bf16 parameter and moments through fp32 copies.
void update_rounding_at_random(const AdamWArgs& args, const float* grad, int64_t begin,
                               int64_t count) {
  float wide[3][kBlock];
  void* const stored[3] = {args.parameter, args.exp_avg, args.exp_avg_sq};
  for (int i = 0; i < 3; ++i) widen_block<c10::BFloat16>(wide[i], stored[i], begin, count);
  update(wide[0], wide[1], wide[2], grad, count, args);
  for (int64_t i = 0; i < count; ++i) {
    uint64_t random = mix(args.seed + static_cast<uint64_t>(begin + i));
    for (int j = 0; j < 3; ++j, random >>= 16)
      static_cast<uint16_t*>(stored[j])[begin + i] =
          rounded_at_random(std::bit_cast<uint32_t>(wide[j][i]), static_cast<uint32_t>(random));
  }
}

}  // namespace

void adamw_cpu(const AdamWArgs& args) {
  at::parallel_for(0, args.count, 16 * kBlock, [&](int64_t begin, int64_t end) {
    float grad[kBlock];
    for (int64_t at = begin; at < end; at += kBlock) {
      const int64_t count = std::min(kBlock, end - at);
      cpu::visit_dtype(args.grad_dtype,
                       [&](auto kind) { widen_block<decltype(kind)>(grad, args.grad, at, count); });
      if (args.master == nullptr) {
        update_rounding_at_random(args, grad, at, count);
        continue;
      }
      update(args.master + at, static_cast<float*>(args.exp_avg) + at,
             static_cast<float*>(args.exp_avg_sq) + at, grad, count, args);
      if (args.parameter == nullptr) continue;
      cpu::visit_dtype(args.parameter_dtype, [&](auto kind) {
        round_block<decltype(kind)>(args.parameter, args.master, at, count);
      });
    }
  });
}

}  // namespace automoe::kernels
