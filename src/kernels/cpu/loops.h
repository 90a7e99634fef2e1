// What the CPU kernels share: dtypes, exp, sums, and work split over threads.
#pragma once

#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/dtype.h"
#include "kernels/vector_clones.h"

namespace automoe::kernels::cpu {

template <typename T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <typename T>
[[gnu::always_inline]] inline Wide<T> widen(T x) {
  return static_cast<Wide<T>>(x);
}

/// Calls visit(T{}) for the C++ type of `dtype`.
template <typename F>
void visit_dtype(DType dtype, F&& visit) {
  switch (dtype) {
    case DType::kFloat32:
      return visit(float{});
    case DType::kFloat64:
      return visit(double{});
    case DType::kBFloat16:
      return visit(c10::BFloat16{});
    case DType::kFloat16:
      return visit(c10::Half{});
  }
}

/// Runs work(begin, end) over [0, rows) on all threads, at least ~16k elements each.
template <typename F>
void parallel_rows(int64_t rows, int64_t width, F&& work) {
  at::parallel_for(0, rows, std::max<int64_t>(1, (int64_t{1} << 14) / std::max<int64_t>(1, width)),
                   work);
}

/// Sum of term(i) over [0, n), in an order that depends on n alone and lets the compiler use
/// vectors.
template <typename W, typename F>
[[gnu::always_inline]] inline W sum_over(int64_t n, F&& term) {
  constexpr int64_t kLanes = 16;
  W lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  W total = 0;
  for (; i < n; ++i) total += term(i);
  for (const W lane : lanes) total += lane;
  return total;
}

[[gnu::always_inline]] inline double exponential(double x) { return std::exp(x); }

/// e^x within 2 ulp; arguments are clamped to where the result is a normal number. Branch-free, so
/// loops over it become vector code: x = n ln 2 + r, then a polynomial in r (coefficients as in
/// Cephes' expf).
[[gnu::always_inline]] inline float exponential(float x) {
  x = std::min(std::max(x, -87.3f), 88.3f);
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float shifted = x * 1.44269504f + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float mantissa = p * r * r + r + 1.0f;
  const int32_t exponent = (std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRound) + 127)
                           << 23;
  return mantissa * std::bit_cast<float>(exponent);
}

}  // namespace automoe::kernels::cpu
