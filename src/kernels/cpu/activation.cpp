#include "kernels/activation_args.h"
#include "kernels/activation_formulas.h"
#include "kernels/cpu/loops.h"

namespace automoe::kernels {
namespace {

using namespace cpu;

// Where the inputs of a row's result i lie: gate[i * kStep], up[i * kStep]. `up` is gate's own
// place where there is none.
template <typename Formula, typename T>
struct Inputs {
  static constexpr int64_t kStep = Formula::kLayout == InputLayout::kPairs ? 2 : 1;
  static constexpr bool kHasUp = Formula::kLayout != InputLayout::kGateOnly;
  T* gate;
  T* up;

  // `offset`: of the row.
  [[gnu::always_inline]] static Inputs at(T* gates, T* ups, int64_t offset) {
    T* gate = gates + offset;
    if constexpr (Formula::kLayout == InputLayout::kHalves) return {gate, ups + offset};
    return {gate, gate + (Formula::kLayout == InputLayout::kPairs)};
  }
};

template <typename Formula, typename W>
[[gnu::always_inline]] inline Activated<W> evaluate(const Formula& formula, W gate, W up) {
  return formula.at(gate, up, W(1) / (W(1) + exponential(-formula.sigmoid_of(gate))));
}

template <typename T, typename Formula>
[[gnu::always_inline]] inline void fwd_rows(const ActivationFwdArgs& args, const Formula& formula,
                                            int64_t begin, int64_t end) {
  using In = Inputs<Formula, const T>;
  for (int64_t row = begin; row < end; ++row) {
    const In in = In::at(static_cast<const T*>(args.gate), static_cast<const T*>(args.up),
                         row * args.in_stride);
    auto* out = static_cast<T*>(args.out) + row * args.width;
    for (int64_t i = 0; i < args.width; ++i)
      out[i] =
          T(evaluate(formula, widen(in.gate[i * In::kStep]), widen(in.up[i * In::kStep])).value);
  }
}

template <typename T, typename Formula>
[[gnu::always_inline]] inline void bwd_rows(const ActivationBwdArgs& args, const Formula& formula,
                                            int64_t begin, int64_t end) {
  using In = Inputs<Formula, const T>;
  for (int64_t row = begin; row < end; ++row) {
    const auto* __restrict d_out = static_cast<const T*>(args.d_out) + row * args.width;
    const In in = In::at(static_cast<const T*>(args.gate), static_cast<const T*>(args.up),
                         row * args.in_stride);
    const auto to = Inputs<Formula, T>::at(static_cast<T*>(args.d_gate), static_cast<T*>(args.d_up),
                                           row * args.grad_stride);
    T* __restrict d_gate = to.gate, * __restrict d_up = to.up;
    for (int64_t i = 0; i < args.width; ++i) {
      const int64_t at = i * In::kStep;
      const auto a = evaluate(formula, widen(in.gate[at]), widen(in.up[at]));
      d_gate[at] = T(widen(d_out[i]) * a.by_gate);
      if constexpr (In::kHasUp) d_up[at] = T(widen(d_out[i]) * a.by_up);
    }
  }
}

template <typename T, typename Formula>
[[gnu::always_inline]] inline void scored_bwd_rows(const ActivationScoredBwdArgs& args,
                                                   const Formula& formula, int64_t begin,
                                                   int64_t end) {
  using W = Wide<T>;
  using In = Inputs<Formula, const T>;
  const int64_t width = args.width, in_width = width * args.activation.num_inputs();
  for (int64_t row = begin; row < std::min<int64_t>(end, *args.used); ++row) {
    const auto* __restrict d_out = static_cast<const T*>(args.d_out) + row * width;
    const auto* pre = static_cast<const T*>(args.pre);
    auto* d_pre = static_cast<T*>(args.d_pre);
    const In in = In::at(pre, pre + width, row * in_width);
    const auto to = Inputs<Formula, T>::at(d_pre, d_pre + width, row * in_width);
    T* __restrict d_gate = to.gate, * __restrict d_up = to.up;
    auto* __restrict scaled = static_cast<T*>(args.scaled) + row * width;
    const W score = static_cast<const W*>(args.score)[args.pair[row]];
    static_cast<W*>(args.d_score)[args.pair[row]] = sum_over<W>(width, [&](int64_t i) {
      const int64_t at = i * In::kStep;
      const W d = widen(d_out[i]);
      const auto a = evaluate(formula, widen(in.gate[at]), widen(in.up[at]));
      scaled[i] = T(a.value * score);
      d_gate[at] = T(d * score * a.by_gate);
      if constexpr (In::kHasUp) d_up[at] = T(d * score * a.by_up);
      return d * a.value;
    });
  }
}

AUTOMOE_VECTOR_CLONES
void fwd_rows_float(const ActivationFwdArgs& args, int64_t begin, int64_t end) {
  visit_formula<float>(
      args.activation, [&](auto formula) __attribute__((always_inline)) {
        fwd_rows<float>(args, formula, begin, end);
      });
}
AUTOMOE_VECTOR_CLONES
void bwd_rows_float(const ActivationBwdArgs& args, int64_t begin, int64_t end) {
  visit_formula<float>(
      args.activation, [&](auto formula) __attribute__((always_inline)) {
        bwd_rows<float>(args, formula, begin, end);
      });
}
AUTOMOE_VECTOR_CLONES
void scored_bwd_rows_float(const ActivationScoredBwdArgs& args, int64_t begin, int64_t end) {
  visit_formula<float>(
      args.activation, [&](auto formula) __attribute__((always_inline)) {
        scored_bwd_rows<float>(args, formula, begin, end);
      });
}

}  // namespace

void activation_fwd_cpu(const ActivationFwdArgs& args) {
  visit_dtype(args.dtype, [&]<typename T>(T) {
    parallel_rows(args.rows, args.width, [&](int64_t begin, int64_t end) {
      if constexpr (std::is_same_v<T, float>) return fwd_rows_float(args, begin, end);
      visit_formula<Wide<T>>(args.activation,
                             [&](auto formula) { fwd_rows<T>(args, formula, begin, end); });
    });
  });
}

void activation_bwd_cpu(const ActivationBwdArgs& args) {
  visit_dtype(args.dtype, [&]<typename T>(T) {
    parallel_rows(args.rows, args.width, [&](int64_t begin, int64_t end) {
      if constexpr (std::is_same_v<T, float>) return bwd_rows_float(args, begin, end);
      visit_formula<Wide<T>>(args.activation,
                             [&](auto formula) { bwd_rows<T>(args, formula, begin, end); });
    });
  });
}

void activation_scored_bwd_cpu(const ActivationScoredBwdArgs& args) {
  visit_dtype(args.dtype, [&]<typename T>(T) {
    parallel_rows(args.rows, args.width, [&](int64_t begin, int64_t end) {
      if constexpr (std::is_same_v<T, float>) return scored_bwd_rows_float(args, begin, end);
      visit_formula<Wide<T>>(args.activation,
                             [&](auto formula) { scored_bwd_rows<T>(args, formula, begin, end); });
    });
  });
}

}  // namespace automoe::kernels
