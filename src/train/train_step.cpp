#include "train/train_step.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <numeric>

#include "automoe/error.h"

namespace automoe::train {
namespace {

using at::Tensor;

at::Device device_of(const CausalLM& model) { return model.parameters().front().tensor.device(); }

Batch on_device(const MicroBatch& batch, at::Device device, int64_t num_items) {
  const auto move = [&](const Tensor& tensor) {
    return device.is_cpu() ? tensor : tensor.pin_memory().to(device, /*non_blocking=*/true);
  };
  return {.input_ids = move(batch.input_ids),
          .attention_mask = std::nullopt,
          .position_ids = move(batch.position_ids),
          .labels = move(batch.labels),
          .num_items_in_batch = at::full({}, num_items, at::TensorOptions(device).dtype(at::kLong)),
          .document_ends = batch.document_ends};
}

Tensor sum_of(const std::vector<Tensor>& scalars) {
  return at::stack(scalars).to(at::kDouble).sum();
}

}  // namespace

StepLosses accumulate_gradients(const CausalLM& model, const StepBatch& step,
                                const StepOptions& options) {
  AUTOMOE_CHECK(step.labelled_tokens > 0,
                "[train] a step without labelled tokens has no gradients");
  const ForwardOptions forward_options{.recompute = options.recompute,
                                       .logits = false,
                                       .logits_to_keep = {},
                                       .router_logits = options.router_aux_loss,
                                       .routing_counts = model.has_experts()};
  std::vector<Tensor> losses, aux_losses;
  Tensor expert_load;
  for (const MicroBatch& micro_batch : step.micro_batches) {
    const ModelOutput out = model.forward(
        on_device(micro_batch, device_of(model), step.labelled_tokens), forward_options);
    if (out.aux_loss.defined()) {
      const double share = double(micro_batch.input_ids.numel()) / double(step.tokens);
      const Tensor balance =
          options.router_aux_loss_coef * out.aux_loss;  // in out.loss with weight 1
      (share == 1.0 ? out.loss : out.loss + (share - 1.0) * balance).backward();
      losses.push_back((out.loss - balance).detach());
      aux_losses.push_back(share * out.aux_loss.detach());
    } else {
      out.loss.backward();
      losses.push_back(out.loss.detach());
    }
    if (out.routing_counts.defined())
      expert_load = expert_load.defined() ? expert_load + out.routing_counts : out.routing_counts;
  }
  const Tensor loss = sum_of(losses);
  return {loss, aux_losses.empty() ? at::zeros_like(loss) : sum_of(aux_losses), expert_load};
}

EvalMetrics evaluate_rows(const CausalLM& model, const PreparedData& data, const Rows& rows,
                          int64_t rows_per_batch) {
  const at::NoGradGuard no_grad;
  std::vector<Tensor> sums;
  EvalMetrics metrics;
  for (int64_t begin = 0; begin < rows.count(); begin += rows_per_batch) {
    std::vector<int64_t> indices(size_t(std::min(rows_per_batch, rows.count() - begin)));
    std::iota(indices.begin(), indices.end(), begin);
    const MicroBatch batch = make_micro_batch(data, rows, indices);
    if (batch.labelled_tokens == 0) continue;
    metrics.labelled_tokens += batch.labelled_tokens;
    sums.push_back(model
                       .forward(on_device(batch, device_of(model), /*num_items=*/1),
                                {.logits = false, .logits_to_keep = {}})
                       .loss);
  }
  AUTOMOE_CHECK_VALUE(metrics.labelled_tokens > 0, "[eval] ", data.name(),
                      " holds no trained tokens to evaluate");
  metrics.loss = sum_of(sums).item<double>() / double(metrics.labelled_tokens);
  metrics.perplexity = std::exp(metrics.loss);
  return metrics;
}

}  // namespace automoe::train
