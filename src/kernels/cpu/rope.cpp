#include "kernels/cpu/loops.h"
#include "kernels/rope_args.h"

namespace automoe::kernels {
namespace {

using namespace cpu;

// Turns element i * step of x with element i * step + partner.
template <int kStep, typename T>
[[gnu::always_inline]] inline void rotate_head(const T* __restrict x, T* __restrict y,
                                               const T* __restrict cos, const T* __restrict sin,
                                               int64_t half, int64_t partner, Wide<T> sign) {
  using W = Wide<T>;
  for (int64_t i = 0; i < half; ++i) {
    const W first = widen(x[i * kStep]), second = widen(x[i * kStep + partner]);
    const W c = widen(cos[i]), s = sign * widen(sin[i]);
    y[i * kStep] = T(first * c - second * s);
    y[i * kStep + partner] = T(second * c + first * s);
  }
}

template <typename T>
[[gnu::always_inline]] inline void rotate_tokens(const RopeArgs& args, int64_t begin, int64_t end) {
  using W = Wide<T>;
  const int64_t half = args.half, first = args.first, rest = first + 2 * half;
  const W sign = args.inverse ? W(-1) : W(1);
  for (int64_t token = begin; token < end; ++token) {
    const auto* __restrict cos = static_cast<const T*>(args.cos) + token * half;
    const auto* __restrict sin = static_cast<const T*>(args.sin) + token * half;
    for (int64_t head = 0; head < args.heads; ++head) {
      const auto* __restrict x =
          static_cast<const T*>(args.x) + token * args.token_stride + head * args.head_stride;
      auto* __restrict y = static_cast<T*>(args.y) + (token * args.heads + head) * args.dim;
      std::copy(x, x + first, y);
      if (args.pairs)
        rotate_head<2>(x + first, y + first, cos, sin, half, /*partner=*/1, sign);
      else
        rotate_head<1>(x + first, y + first, cos, sin, half, /*partner=*/half, sign);
      std::copy(x + rest, x + args.dim, y + rest);
    }
  }
}

AUTOMOE_VECTOR_CLONES
void rotate_tokens_float(const RopeArgs& args, int64_t begin, int64_t end) {
  rotate_tokens<float>(args, begin, end);
}

}  // namespace

void rope_cpu(const RopeArgs& args) {
  visit_dtype(args.dtype, [&]<typename T>(T) {
    parallel_rows(args.tokens, args.heads * args.dim, [&](int64_t begin, int64_t end) {
      if constexpr (std::is_same_v<T, float>) return rotate_tokens_float(args, begin, end);
      rotate_tokens<T>(args, begin, end);
    });
  });
}

}  // namespace automoe::kernels
