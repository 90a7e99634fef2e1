// torch.ops.automoe.*: the kernels, for Python code that patches a model without a native family.
#include <torch/library.h>

#include "kernels/experts.h"
#include "kernels/linear_cross_entropy.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/silu_mul.h"

namespace automoe::bindings {
namespace {

at::Tensor cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                         const at::Tensor& targets, const std::optional<at::Tensor>& denominator) {
  return kernels::linear_cross_entropy(hidden, weight, targets, denominator.value_or(at::Tensor()));
}

TORCH_LIBRARY_FRAGMENT(automoe, m) {
  m.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor", kernels::rms_norm);
  m.def("silu_mul(Tensor gate, Tensor up) -> Tensor", kernels::silu_mul);
  m.def("apply_rope(Tensor x, Tensor cos, Tensor sin) -> Tensor", kernels::apply_rope);
  m.def(
      "gated_experts(Tensor x, Tensor indices, Tensor weights, Tensor gate_up, Tensor down) -> "
      "Tensor",
      kernels::gated_experts);
  m.def(
      "linear_cross_entropy(Tensor hidden, Tensor weight, Tensor targets, Tensor? denominator) -> "
      "Tensor",
      cross_entropy);
}

}  // namespace
}  // namespace automoe::bindings
