#include "kernels/cpu/loops.h"
#include "kernels/silu_mul_args.h"

namespace automoe::kernels {
namespace {

using namespace cpu;

template <typename W>
[[gnu::always_inline]] inline W sigmoid(W x) {
  return W(1) / (W(1) + exponential(-x));
}

template <typename T>
[[gnu::always_inline]] inline void fwd_rows(const SiluMulFwdArgs& args, int64_t begin,
                                            int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const auto* gate = static_cast<const T*>(args.gate) + row * args.in_stride;
    const auto* up = static_cast<const T*>(args.up) + row * args.in_stride;
    auto* out = static_cast<T*>(args.out) + row * args.width;
    for (int64_t i = 0; i < args.width; ++i) {
      const Wide<T> g = widen(gate[i]);
      out[i] = T(g * sigmoid(g) * widen(up[i]));
    }
  }
}

template <typename T>
[[gnu::always_inline]] inline void bwd_rows(const SiluMulBwdArgs& args, int64_t begin,
                                            int64_t end) {
  using W = Wide<T>;
  for (int64_t row = begin; row < end; ++row) {
    const auto* __restrict d_out = static_cast<const T*>(args.d_out) + row * args.width;
    const auto* __restrict gate = static_cast<const T*>(args.gate) + row * args.in_stride;
    const auto* __restrict up = static_cast<const T*>(args.up) + row * args.in_stride;
    auto* __restrict d_gate = static_cast<T*>(args.d_gate) + row * args.grad_stride;
    auto* __restrict d_up = static_cast<T*>(args.d_up) + row * args.grad_stride;
    for (int64_t i = 0; i < args.width; ++i) {
      const W d = widen(d_out[i]), g = widen(gate[i]), s = sigmoid(g);
      d_gate[i] = T(d * widen(up[i]) * s * (W(1) + g * (W(1) - s)));
      d_up[i] = T(d * g * s);
    }
  }
}

template <typename T>
[[gnu::always_inline]] inline void scored_bwd_rows(const SiluMulScoredBwdArgs& args, int64_t begin,
                                                   int64_t end) {
  using W = Wide<T>;
  const int64_t width = args.width;
  for (int64_t row = begin; row < std::min<int64_t>(end, *args.used); ++row) {
    const auto* __restrict d_out = static_cast<const T*>(args.d_out) + row * width;
    const auto* __restrict gate = static_cast<const T*>(args.gate_up) + row * 2 * width;
    auto* __restrict d_gate = static_cast<T*>(args.d_gate_up) + row * 2 * width;
    auto* __restrict scaled = static_cast<T*>(args.scaled) + row * width;
    const W score = static_cast<const W*>(args.score)[args.pair[row]];
    static_cast<W*>(args.d_score)[args.pair[row]] = sum_over<W>(width, [&](int64_t i) {
      const W d = widen(d_out[i]), g = widen(gate[i]), u = widen(gate[width + i]), s = sigmoid(g);
      const W activation = g * s * u;
      scaled[i] = T(activation * score);
      d_gate[i] = T(d * score * u * s * (W(1) + g * (W(1) - s)));
      d_gate[width + i] = T(d * score * g * s);
      return d * activation;
    });
  }
}

AUTOMOE_VECTOR_CLONES
void fwd_rows_float(const SiluMulFwdArgs& args, int64_t begin, int64_t end) {
  fwd_rows<float>(args, begin, end);
}
AUTOMOE_VECTOR_CLONES
void bwd_rows_float(const SiluMulBwdArgs& args, int64_t begin, int64_t end) {
  bwd_rows<float>(args, begin, end);
}
AUTOMOE_VECTOR_CLONES
void scored_bwd_rows_float(const SiluMulScoredBwdArgs& args, int64_t begin, int64_t end) {
  scored_bwd_rows<float>(args, begin, end);
}

}  // namespace

void silu_mul_fwd_cpu(const SiluMulFwdArgs& args) {
  visit_dtype(args.dtype, [&]<typename T>(T) {
    parallel_rows(args.rows, args.width, [&](int64_t begin, int64_t end) {
      if constexpr (std::is_same_v<T, float>) return fwd_rows_float(args, begin, end);
      fwd_rows<T>(args, begin, end);
    });
  });
}

void silu_mul_bwd_cpu(const SiluMulBwdArgs& args) {
  visit_dtype(args.dtype, [&]<typename T>(T) {
    parallel_rows(args.rows, args.width, [&](int64_t begin, int64_t end) {
      if constexpr (std::is_same_v<T, float>) return bwd_rows_float(args, begin, end);
      bwd_rows<T>(args, begin, end);
    });
  });
}

void silu_mul_scored_bwd_cpu(const SiluMulScoredBwdArgs& args) {
  visit_dtype(args.dtype, [&]<typename T>(T) {
    parallel_rows(args.rows, args.width, [&](int64_t begin, int64_t end) {
      if constexpr (std::is_same_v<T, float>) return scored_bwd_rows_float(args, begin, end);
      scored_bwd_rows<T>(args, begin, end);
    });
  });
}

}  // namespace automoe::kernels
