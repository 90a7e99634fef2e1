// The formulas of the activations, for host and device code alike. No branches, so that CPU loops
// become vector code.
#pragma once

#include "kernels/activation_args.h"

namespace automoe::kernels {

/// A result and its derivatives.
template <typename W>
struct Activated {
  W value, by_gate, by_up;
};

/// How the inputs of a row's results lie. kHalves: all gates, then all ups; kPairs: gate, up, gate,
/// up, ...; kGateOnly: there is no up.
enum class InputLayout { kHalves, kPairs, kGateOnly };

// A formula says what it takes the sigmoid of, and then what it makes of gate, up and that sigmoid.

template <typename W>
struct SiluMul {
  static constexpr InputLayout kLayout = InputLayout::kHalves;

  explicit constexpr SiluMul(const Activation&) {}
  constexpr W sigmoid_of(W gate) const { return gate; }
  constexpr Activated<W> at(W gate, W up, W sigmoid) const {
    return {gate * sigmoid * up, up * sigmoid * (W(1) + gate * (W(1) - sigmoid)), gate * sigmoid};
  }
};

/// The gradient passes at the limits themselves, as in torch.clamp.
template <typename W>
struct ClampedSwiglu {
  static constexpr InputLayout kLayout = InputLayout::kPairs;
  W alpha, limit;

  explicit constexpr ClampedSwiglu(const Activation& a) : alpha(W(a.alpha)), limit(W(a.limit)) {}
  constexpr W clamped(W gate) const { return gate > limit ? limit : gate; }
  constexpr W sigmoid_of(W gate) const { return alpha * clamped(gate); }
  constexpr Activated<W> at(W gate, W up, W sigmoid) const {
    const W g = clamped(gate), low = up < -limit ? -limit : up;
    const W u = clamped(low) + W(1);
    return {u * g * sigmoid,
            gate > limit ? W(0) : u * sigmoid * (W(1) + alpha * g * (W(1) - sigmoid)),
            (up < -limit) | (up > limit) ? W(0) : g * sigmoid};
  }
};

template <typename W>
struct ReluSquared {
  static constexpr InputLayout kLayout = InputLayout::kGateOnly;

  explicit constexpr ReluSquared(const Activation&) {}
  constexpr W sigmoid_of(W) const { return W(0); }
  constexpr Activated<W> at(W gate, W, W) const {
    const W x = gate < W(0) ? W(0) : gate;
    return {x * x, W(2) * x, W(0)};
  }
};

/// Calls visit with the formula of `activation` on numbers W.
template <typename W, typename F>
[[gnu::always_inline]] inline void visit_formula(const Activation& activation, F&& visit) {
  switch (activation.kind) {
    case Activation::kSiluMul:
      return visit(SiluMul<W>(activation));
    case Activation::kClampedSwiglu:
      return visit(ClampedSwiglu<W>(activation));
    case Activation::kReluSquared:
      return visit(ReluSquared<W>(activation));
  }
}

}  // namespace automoe::kernels
