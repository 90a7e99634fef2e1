#include "kernels/silu_mul.h"

#include "automoe/error.h"

namespace automoe::kernels {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::pair<Tensor, Tensor> gradients(const Tensor& d_out, const Tensor& gate, const Tensor& up) {
  return {at::silu_backward(d_out * up, gate), d_out * at::silu(gate)};
}

struct SiluMul : torch::autograd::Function<SiluMul> {
  static Tensor forward(AutogradContext* ctx, const Tensor& gate, const Tensor& up) {
    ctx->save_for_backward({gate, up});
    return at::silu(gate) * up;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    auto [d_gate, d_up] = gradients(grads[0], saved[0], saved[1]);
    return {d_gate, d_up};
  }
};

}  // namespace

Tensor silu_mul(const Tensor& gate, const Tensor& up) {
  AUTOMOE_CHECK_VALUE(gate.sizes() == up.sizes(), "[silu_mul] gate and up must have one shape, got ",
                      gate.sizes(), " and ", up.sizes());
  return SiluMul::apply(gate, up);
}

Tensor silu_mul_halves(const Tensor& gate_up) {
  const auto halves = gate_up.chunk(2, /*dim=*/-1);
  return at::silu(halves[0]) * halves[1];
}

Tensor silu_mul_halves_backward(const Tensor& d_activation, const Tensor& gate_up) {
  const auto halves = gate_up.chunk(2, /*dim=*/-1);
  const auto [d_gate, d_up] = gradients(d_activation, halves[0], halves[1]);
  return at::cat({d_gate, d_up}, /*dim=*/-1);
}

}  // namespace automoe::kernels
