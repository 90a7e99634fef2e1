#include "kernels/linear_cross_entropy.h"

#include "automoe/error.h"

namespace automoe::kernels {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kChunkElements = int64_t{1} << 26;  // fp32 logits alive at a time: 256 MiB

struct Gradients {
  Tensor hidden, weight;  // undefined where not wanted
};

// Adds the loss of one chunk to `loss` and its gradients, divided by `denominator`, to `grads`.
void add_chunk(const Tensor& hidden, const Tensor& weight, const Tensor& targets, const Tensor& denominator,
               Tensor& loss, Tensor d_hidden, Tensor d_weight) {
  Tensor logits = at::linear(hidden, weight).to(at::kFloat);                    // [C, V]
  const Tensor valid = targets.ne(kIgnoreIndex);
  const Tensor safe = targets.clamp_min(0).unsqueeze(1);                        // [C, 1]
  const Tensor log_sum = logits.logsumexp(1, /*keepdim=*/true);
  const Tensor losses = (log_sum - logits.gather(1, safe)).squeeze(1);
  loss += at::where(valid, losses, at::zeros_like(losses)).sum();
  if (!d_hidden.defined() && !d_weight.defined()) return;
  Tensor d_logits = logits.sub_(log_sum).exp_();
  d_logits.scatter_add_(1, safe, at::full_like(log_sum, -1.0));
  d_logits.mul_((valid.to(at::kFloat) / denominator).unsqueeze(1));
  const Tensor rounded = d_logits.to(hidden.scalar_type());
  if (d_hidden.defined()) at::mm_out(d_hidden, rounded, weight);
  if (!d_weight.defined()) return;
  if (d_weight.scalar_type() == hidden.scalar_type())
    d_weight.addmm_(rounded.t(), hidden);
  else
    d_weight.add_(at::mm(rounded.t(), hidden));
}

struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  static Tensor forward(AutogradContext* ctx, const Tensor& hidden, const Tensor& weight,
                        const Tensor& targets, const Tensor& denominator, bool want_hidden, bool want_weight) {
    Gradients grads;
    if (want_hidden) grads.hidden = at::empty_like(hidden);
    if (want_weight) grads.weight = at::zeros_like(weight, at::kFloat);
    Tensor loss = at::zeros({}, hidden.options().dtype(at::kFloat));
    const int64_t rows = std::max<int64_t>(1, kChunkElements / weight.size(0));
    for (int64_t begin = 0; begin < hidden.size(0); begin += rows) {
      const int64_t end = std::min(begin + rows, hidden.size(0));
      add_chunk(hidden.slice(0, begin, end), weight, targets.slice(0, begin, end), denominator, loss,
                want_hidden ? grads.hidden.slice(0, begin, end) : Tensor(), grads.weight);
    }
    if (want_weight) grads.weight = grads.weight.to(weight.scalar_type());
    ctx->saved_data["hidden"] = grads.hidden;
    ctx->saved_data["weight"] = grads.weight;
    return loss / denominator;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto scaled = [&](const char* name) {
      const c10::IValue& saved = ctx->saved_data[name];
      const Tensor grad = saved.isTensor() ? saved.toTensor() : Tensor();
      return grad.defined() ? grad * grads[0].to(grad.scalar_type()) : grad;
    };
    return {scaled("hidden"), scaled("weight"), Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

Tensor linear_cross_entropy(const Tensor& hidden, const Tensor& weight, const Tensor& targets,
                            const Tensor& denominator) {
  AUTOMOE_CHECK_VALUE(hidden.dim() == 2 && weight.dim() == 2 && targets.dim() == 1 &&
                          hidden.size(1) == weight.size(1) && hidden.size(0) == targets.size(0),
                      "[linear_cross_entropy] hidden [T, H], weight [V, H], targets [T] expected, got ",
                      hidden.sizes(), ", ", weight.sizes(), ", ", targets.sizes());
  const Tensor count = targets.ne(kIgnoreIndex).sum().to(at::kFloat).clamp_min(1);
  const Tensor divisor = denominator.defined() ? denominator.to(hidden.device(), at::kFloat).detach() : count;
  Tensor rows = hidden, row_targets = targets;
  if (hidden.is_cpu()) {  // rows without a target cost nothing; on CUDA finding them would need the host
    const Tensor kept = targets.ne(kIgnoreIndex).nonzero().squeeze(1);
    if (kept.size(0) < targets.size(0)) {
      rows = hidden.index_select(0, kept);
      row_targets = targets.index_select(0, kept);
    }
  }
  const bool grad = at::GradMode::is_enabled();
  return LinearCrossEntropy::apply(rows.contiguous(), weight, row_targets, divisor,
                                   grad && hidden.requires_grad(), grad && weight.requires_grad());
}

}  // namespace automoe::kernels
