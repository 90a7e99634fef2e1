#include "train/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "automoe/error.h"
#include "core/mix.h"
#include "kernels/adamw.h"

namespace automoe::train {
namespace {

// Norms and biases, those of experts too, decay nowhere.
bool decays(const NamedTensor& parameter) {
  return parameter.tensor.dim() > 1 && !parameter.name.ends_with("bias");
}

}  // namespace

Optimizer::Optimizer(const std::vector<NamedTensor>& parameters, const OptimizerOptions& options)
    : options_(options) {
  const at::NoGradGuard no_grad;
  for (const NamedTensor& parameter : parameters) {
    const at::Tensor weights = parameter.tensor.detach();
    const at::ScalarType dtype = weights.scalar_type();
    AUTOMOE_CHECK_VALUE(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf,
                        "[train] ", parameter.name, " is ", dtype,
                        "; only float32, bfloat16 and float16 parameters can be trained");
    const bool rounds = options.stochastic_rounding && dtype == at::kBFloat16;
    const at::Tensor master =
        rounds ? at::Tensor() : weights.to(at::kFloat);  // fp32: the same memory
    const at::Tensor& like = rounds ? weights : master;
    slots_.push_back({parameter, master, at::zeros_like(like), at::zeros_like(like)});
  }
}

void Optimizer::step(double learning_rate, const at::Tensor& grad_scale) {
  ++updates_;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    const at::Tensor& grad = slot.parameter.tensor.grad();
    if (!grad.defined()) continue;
    kernels::adamw_(slot.parameter.tensor.detach(), slot.master, slot.exp_avg, slot.exp_avg_sq,
                    grad.contiguous(), grad_scale,
                    {.learning_rate = learning_rate,
                     .beta1 = options_.beta1,
                     .beta2 = options_.beta2,
                     .epsilon = options_.epsilon,
                     .weight_decay = decays(slot.parameter) ? options_.weight_decay : 0.0,
                     .step = updates_,
                     .seed = mix(options_.seed) + mix(uint64_t(updates_)) + i});
  }
}

std::vector<at::Tensor> Optimizer::grads() const {
  std::vector<at::Tensor> grads;
  for (const Slot& slot : slots_) grads.push_back(slot.parameter.tensor.grad());
  return grads;
}

void Optimizer::clear_grads() {
  for (Slot& slot : slots_) slot.parameter.tensor.mutable_grad() = at::Tensor();
}

std::vector<NamedTensor> Optimizer::state() const {
  std::vector<NamedTensor> state;
  for (const Slot& slot : slots_) {
    const std::string& name = slot.parameter.name;
    if (slot.master.defined() && slot.parameter.tensor.scalar_type() != at::kFloat)
      state.push_back({"master." + name, slot.master});
    state.push_back({"exp_avg." + name, slot.exp_avg});
    state.push_back({"exp_avg_sq." + name, slot.exp_avg_sq});
  }
  return state;
}

}  // namespace automoe::train
