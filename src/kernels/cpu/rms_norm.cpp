#include "kernels/cpu/loops.h"
#include "kernels/rms_norm_args.h"

namespace automoe::kernels {
namespace {

using namespace cpu;

// The normalised x as it meets the weight.
template <typename T>
[[gnu::always_inline]] inline Wide<T> normalised(T x, Wide<T> inverse_rms, NormRounding rounding) {
  const Wide<T> exact = widen(x) * inverse_rms;
  return rounding == NormRounding::kNormalised ? widen(T(exact)) : exact;
}

template <typename T>
[[gnu::always_inline]] inline void fwd_rows(const RmsNormFwdArgs& args, int64_t begin,
                                            int64_t end) {
  using W = Wide<T>;
  const int64_t width = args.width;
  const auto* weight = static_cast<const T*>(args.weight);
  for (int64_t row = begin; row < end; ++row) {
    const auto* x = static_cast<const T*>(args.x) + row * width;
    if (args.residual) {
      const auto* residual = static_cast<const T*>(args.residual) + row * width;
      auto* sum = static_cast<T*>(args.sum) + row * width;
      for (int64_t i = 0; i < width; ++i) sum[i] = T(widen(x[i]) + widen(residual[i]));
      x = sum;
    }
    const W squares = sum_over<W>(width, [&](int64_t i) { return widen(x[i]) * widen(x[i]); });
    const W inverse_rms = W(1) / std::sqrt(squares / W(width) + W(args.eps));
    static_cast<W*>(args.inverse_rms)[row] = inverse_rms;
    auto* y = static_cast<T*>(args.y) + row * width;
    for (int64_t i = 0; i < width; ++i)
      y[i] = T(normalised(x[i], inverse_rms, args.rounding) * widen(weight[i]));
  }
}

template <typename T>
[[gnu::always_inline]] inline void dx_rows(const RmsNormBwdArgs& args, int64_t begin, int64_t end) {
  using W = Wide<T>;
  const int64_t width = args.width;
  const auto* weight = static_cast<const T*>(args.weight);
  for (int64_t row = begin; row < end; ++row) {
    const auto* dy = static_cast<const T*>(args.dy) + row * width;
    const auto* x = static_cast<const T*>(args.x) + row * width;
    auto* dx = static_cast<T*>(args.dx) + row * width;
    const W inverse_rms = static_cast<const W*>(args.inverse_rms)[row];
    const W along_x = sum_over<W>(width, [&](int64_t i) {
      return widen(dy[i]) * widen(weight[i]) * (widen(x[i]) * inverse_rms);
    });
    const W mean = along_x / W(width);
    const auto gradient = [&](int64_t i) {
      return inverse_rms * (widen(dy[i]) * widen(weight[i]) - widen(x[i]) * inverse_rms * mean);
    };
    if (args.d_sum) {
      const auto* d_sum = static_cast<const T*>(args.d_sum) + row * width;
      for (int64_t i = 0; i < width; ++i) dx[i] = T(gradient(i) + widen(d_sum[i]));
    } else {
      for (int64_t i = 0; i < width; ++i) dx[i] = T(gradient(i));
    }
  }
}

// Part p sums its own share of the rows, so the result does not depend on the number of threads.
template <typename T>
[[gnu::always_inline]] inline void dweight_parts(const RmsNormBwdArgs& args, int64_t begin,
                                                 int64_t end) {
  using W = Wide<T>;
  const int64_t width = args.width;
  for (int64_t part = begin; part < end; ++part) {
    auto* dweight = static_cast<W*>(args.dweight_parts) + part * width;
    std::fill(dweight, dweight + width, W(0));
    for (int64_t row = part * args.rows / args.parts; row < (part + 1) * args.rows / args.parts;
         ++row) {
      const auto* dy = static_cast<const T*>(args.dy) + row * width;
      const auto* x = static_cast<const T*>(args.x) + row * width;
      const W inverse_rms = static_cast<const W*>(args.inverse_rms)[row];
      for (int64_t i = 0; i < width; ++i)
        dweight[i] += widen(dy[i]) * normalised(x[i], inverse_rms, args.rounding);
    }
  }
}

AUTOMOE_VECTOR_CLONES
void fwd_rows_float(const RmsNormFwdArgs& args, int64_t begin, int64_t end) {
  fwd_rows<float>(args, begin, end);
}
AUTOMOE_VECTOR_CLONES
void dx_rows_float(const RmsNormBwdArgs& args, int64_t begin, int64_t end) {
  dx_rows<float>(args, begin, end);
}
AUTOMOE_VECTOR_CLONES
void dweight_parts_float(const RmsNormBwdArgs& args, int64_t begin, int64_t end) {
  dweight_parts<float>(args, begin, end);
}

}  // namespace

void rms_norm_fwd_cpu(const RmsNormFwdArgs& args) {
  visit_dtype(args.dtype, [&]<typename T>(T) {
    parallel_rows(args.rows, args.width, [&](int64_t begin, int64_t end) {
      if constexpr (std::is_same_v<T, float>) return fwd_rows_float(args, begin, end);
      fwd_rows<T>(args, begin, end);
    });
  });
}

void rms_norm_bwd_cpu(const RmsNormBwdArgs& args) {
  visit_dtype(args.dtype, [&]<typename T>(T) {
    if (args.dx)
      parallel_rows(args.rows, args.width, [&](int64_t begin, int64_t end) {
        if constexpr (std::is_same_v<T, float>) return dx_rows_float(args, begin, end);
        dx_rows<T>(args, begin, end);
      });
    if (args.dweight_parts)
      at::parallel_for(0, args.parts, 1, [&](int64_t begin, int64_t end) {
        if constexpr (std::is_same_v<T, float>) return dweight_parts_float(args, begin, end);
        dweight_parts<T>(args, begin, end);
      });
  });
}

}  // namespace automoe::kernels
