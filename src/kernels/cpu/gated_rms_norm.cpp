#include "kernels/cpu/loops.h"
#include "kernels/gated_rms_norm_args.h"

namespace automoe::kernels {
namespace {

using namespace cpu;

template <typename W>
[[gnu::always_inline]] inline W sigmoid(W x) {
  return W(1) / (W(1) + exponential(-x));
}

// Where a row begins in x and in gate.
struct Place {
  int64_t x, gate, weight;
};

template <typename Args>
Place place(const Args& args, int64_t row) {
  const int64_t token = row / args.groups, column = row % args.groups * args.width;
  return {row * args.width, token * args.gate_stride + column, column};
}

template <typename T>
[[gnu::always_inline]] inline void fwd_rows(const GatedRmsNormFwdArgs& args, int64_t begin,
                                            int64_t end) {
  using W = Wide<T>;
  for (int64_t row = begin; row < end; ++row) {
    const Place at = place(args, row);
    const auto* x = static_cast<const T*>(args.x) + at.x;
    const auto* gate = static_cast<const T*>(args.gate) + at.gate;
    const auto* weight = static_cast<const W*>(args.weight) + at.weight;
    auto* y = static_cast<T*>(args.y) + at.x;
    const auto gated = [&](int64_t i) {
      const W g = widen(gate[i]);
      return widen(x[i]) * g * sigmoid(g);
    };
    const W squares = sum_over<W>(args.width, [&](int64_t i) { return gated(i) * gated(i); });
    const W inverse_rms = W(1) / std::sqrt(squares / W(args.width) + W(args.eps));
    static_cast<W*>(args.inverse_rms)[row] = inverse_rms;
    for (int64_t i = 0; i < args.width; ++i) y[i] = T(weight[i] * (gated(i) * inverse_rms));
  }
}

// The rows of tokens [begin, end); adds to dweight [groups, width].
template <typename T>
[[gnu::always_inline]] inline void bwd_tokens(const GatedRmsNormBwdArgs& args, int64_t begin,
                                              int64_t end, Wide<T>* dweight_sums) {
  using W = Wide<T>;
  const int64_t width = args.width;
  for (int64_t row = begin * args.groups; row < end * args.groups; ++row) {
    const Place at = place(args, row);
    const auto* __restrict dy = static_cast<const T*>(args.dy) + at.x;
    const auto* __restrict x = static_cast<const T*>(args.x) + at.x;
    const auto* __restrict gate = static_cast<const T*>(args.gate) + at.gate;
    const auto* __restrict weight = static_cast<const W*>(args.weight) + at.weight;
    auto* __restrict dx = static_cast<T*>(args.dx) + at.x;
    auto* __restrict dgate = static_cast<T*>(args.dgate) + at.x;
    auto* __restrict dweight = dweight_sums + at.weight;
    const W inverse_rms = static_cast<const W*>(args.inverse_rms)[row];
    const W along = sum_over<W>(width, [&](int64_t i) {
      const W g = widen(gate[i]);
      return widen(dy[i]) * weight[i] * (widen(x[i]) * g * sigmoid(g) * inverse_rms);
    });
    const W mean = along / W(width);
    for (int64_t i = 0; i < width; ++i) {
      const W g = widen(gate[i]), s = sigmoid(g), v = widen(x[i]);
      const W normed = v * g * s * inverse_rms;
      const W d = inverse_rms * (widen(dy[i]) * weight[i] - normed * mean);
      dx[i] = T(d * g * s);
      dgate[i] = T(d * v * s * (W(1) + g * (W(1) - s)));
      dweight[i] += widen(dy[i]) * normed;
    }
  }
}

AUTOMOE_VECTOR_CLONES
void fwd_rows_float(const GatedRmsNormFwdArgs& args, int64_t begin, int64_t end) {
  fwd_rows<float>(args, begin, end);
}
AUTOMOE_VECTOR_CLONES
void bwd_tokens_float(const GatedRmsNormBwdArgs& args, int64_t begin, int64_t end, float* dweight) {
  bwd_tokens<float>(args, begin, end, dweight);
}

}  // namespace

// A number that depends on the tokens alone, so that the result does not depend on the threads.
int64_t gated_rms_norm_parts_cpu(int64_t tokens) { return std::clamp<int64_t>(tokens / 64, 1, 32); }

void gated_rms_norm_fwd_cpu(const GatedRmsNormFwdArgs& args) {
  visit_dtype(args.dtype, [&]<typename T>(T) {
    parallel_rows(args.tokens * args.groups, args.width, [&](int64_t begin, int64_t end) {
      if constexpr (std::is_same_v<T, float>) return fwd_rows_float(args, begin, end);
      fwd_rows<T>(args, begin, end);
    });
  });
}

void gated_rms_norm_bwd_cpu(const GatedRmsNormBwdArgs& args) {
  visit_dtype(args.dtype, [&]<typename T>(T) {
    at::parallel_for(0, args.parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) {
        const int64_t size = args.groups * args.width;
        auto* dweight = static_cast<Wide<T>*>(args.dweight_parts) + part * size;
        std::fill(dweight, dweight + size, Wide<T>(0));
        const int64_t first = part * args.tokens / args.parts;
        const int64_t last = (part + 1) * args.tokens / args.parts;
        if constexpr (std::is_same_v<T, float>)
          bwd_tokens_float(args, first, last, dweight);
        else
          bwd_tokens<T>(args, first, last, dweight);
      }
    });
  });
}

}  // namespace automoe::kernels
