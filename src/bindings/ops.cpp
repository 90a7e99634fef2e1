// torch.ops.automoe.*: the kernels, for Python code that patches a model without a native family.
#include <torch/library.h>

#include "kernels/activation.h"
#include "kernels/adamw.h"
#include "kernels/experts.h"
#include "kernels/linear_cross_entropy.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"

namespace automoe::bindings {
namespace {

at::Tensor cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                         const at::Tensor& targets, const std::optional<at::Tensor>& denominator) {
  return kernels::linear_cross_entropy(hidden, weight, targets, denominator.value_or(at::Tensor()));
}

void adamw(const at::Tensor& parameter, const std::optional<at::Tensor>& master,
           const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq, const at::Tensor& grad,
           double learning_rate, double beta1, double beta2, double epsilon, double weight_decay,
           int64_t step, int64_t seed) {
  kernels::adamw_(parameter.detach(), master ? master->detach() : at::Tensor(), exp_avg, exp_avg_sq,
                  grad, {},
                  {.learning_rate = learning_rate,
                   .beta1 = beta1,
                   .beta2 = beta2,
                   .epsilon = epsilon,
                   .weight_decay = weight_decay,
                   .step = step,
                   .seed = static_cast<uint64_t>(seed)});
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps,
                    bool round_normalised) {
  using kernels::NormRounding;
  return kernels::rms_norm(
      x, weight, eps, round_normalised ? NormRounding::kNormalised : NormRounding::kResultOnly);
}

at::Tensor experts(const at::Tensor& x, const at::Tensor& indices, const at::Tensor& weights,
                   const at::Tensor& up, const at::Tensor& down,
                   const std::optional<at::Tensor>& up_bias,
                   const std::optional<at::Tensor>& down_bias, const std::string& activation,
                   double alpha, double limit) {
  const kernels::ExpertWeights experts{up, down, up_bias.value_or(at::Tensor()),
                                       down_bias.value_or(at::Tensor())};
  return kernels::experts(x, indices, weights, experts,
                          {kernels::activation_kind(activation), alpha, limit});
}

at::Tensor apply_rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  return kernels::apply_rope(x, cos, sin);
}

TORCH_LIBRARY_FRAGMENT(automoe, m) {
  m.def(
      "adamw_(Tensor(a!) parameter, Tensor(b!)? master, Tensor(c!) exp_avg, Tensor(d!) exp_avg_sq, "
      "Tensor grad, float learning_rate, float beta1, float beta2, float epsilon, float "
      "weight_decay, int step, int seed) -> ()",
      adamw);
  m.def("rms_norm(Tensor x, Tensor weight, float eps, bool round_normalised=True) -> Tensor",
        rms_norm);
  m.def("silu_mul(Tensor gate, Tensor up) -> Tensor", kernels::silu_mul);
  m.def("apply_rope(Tensor x, Tensor cos, Tensor sin) -> Tensor", apply_rope);
  m.def(
      "experts(Tensor x, Tensor indices, Tensor weights, Tensor up, Tensor down, "
      "Tensor? up_bias=None, Tensor? down_bias=None, str activation='silu_mul', "
      "float alpha=1.702, float limit=7.0) -> Tensor",
      experts);
  m.def(
      "linear_cross_entropy(Tensor hidden, Tensor weight, Tensor targets, Tensor? denominator) -> "
      "Tensor",
      cross_entropy);
}

}  // namespace
}  // namespace automoe::bindings
