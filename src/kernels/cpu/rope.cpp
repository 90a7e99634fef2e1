#include "kernels/cpu/loops.h"
#include "kernels/rope_args.h"

namespace automoe::kernels {
namespace {

using namespace cpu;

template <typename T>
[[gnu::always_inline]] inline void rotate_tokens(const RopeArgs& args, int64_t begin, int64_t end) {
  using W = Wide<T>;
  const int64_t half = args.half;
  const W sign = args.inverse ? W(-1) : W(1);
  for (int64_t token = begin; token < end; ++token) {
    const auto* __restrict cos = static_cast<const T*>(args.cos) + token * half;
    const auto* __restrict sin = static_cast<const T*>(args.sin) + token * half;
    for (int64_t head = 0; head < args.heads; ++head) {
      const auto* __restrict x =
          static_cast<const T*>(args.x) + token * args.token_stride + head * args.head_stride;
      auto* __restrict y = static_cast<T*>(args.y) + (token * args.heads + head) * args.dim;
      for (int64_t i = 0; i < half; ++i) {
        const W first = widen(x[i]), second = widen(x[half + i]);
        const W c = widen(cos[i]), s = sign * widen(sin[i]);
        y[i] = T(first * c - second * s);
        y[half + i] = T(second * c + first * s);
      }
      std::copy(x + 2 * half, x + args.dim, y + 2 * half);
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
