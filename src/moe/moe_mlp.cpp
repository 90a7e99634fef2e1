#include "moe/moe_mlp.h"

namespace automoe::moe {

MoeMlp::Experts::Experts(blocks::ParamScope scope, const Options& o) {
  const auto declare = [&](const std::string& name, int64_t out, int64_t in) {
    const std::vector<int64_t> matrix{o.num_experts, o.transposed ? in : out,
                                      o.transposed ? out : in};
    const blocks::ParamId id = scope.declare(name, matrix);
    return std::pair{id, o.biases ? scope.declare(name + "_bias", {o.num_experts, out}) : -1};
  };
  const int64_t inputs = o.activation.num_inputs();
  const int64_t outer = o.latent > 0 ? o.latent : o.hidden;
  std::tie(up, up_bias) =
      declare(inputs == 2 ? "gate_up_proj" : "up_proj", inputs * o.width, outer);
  std::tie(down, down_bias) = declare("down_proj", outer, o.width);
}

kernels::ExpertWeights MoeMlp::Experts::weights(const blocks::Params& params,
                                                bool transposed) const {
  const auto matrix = [&](blocks::ParamId id) {
    return transposed ? params[id].transpose(1, 2) : params[id];
  };
  const auto bias = [&](blocks::ParamId id) { return id < 0 ? Tensor() : params[id]; };
  return {matrix(up), matrix(down), bias(up_bias), bias(down_bias)};
}

MoeMlp::MoeMlp(blocks::ParamScope scope, const Options& options)
    : activation_(options.activation), transposed_(options.transposed) {
  if (!options.gate_first) experts_.emplace(scope.child("experts"), options);
  gate_ = options.router(scope.child(options.gate_name));
  if (options.gate_first) experts_.emplace(scope.child("experts"), options);
  if (options.shared_width > 0)
    shared_experts_.emplace(scope.child(options.shared_name),
                            blocks::Mlp::Options{.hidden = options.hidden,
                                                 .width = options.shared_width,
                                                 .bias = options.dense_bias,
                                                 .gated = options.activation.num_inputs() == 2});
  if (options.shared_gate)
    shared_gate_.emplace(scope.child(options.shared_name + "_gate"), options.hidden, 1,
                         /*bias=*/false);
  if (options.latent > 0) {
    into_latent_.emplace(scope.child("fc1_latent_proj"), options.hidden, options.latent,
                         options.dense_bias);
    out_of_latent_.emplace(scope.child("fc2_latent_proj"), options.latent, options.hidden,
                           options.dense_bias);
  }
}

blocks::BlockOutput MoeMlp::forward(const blocks::Context& context, const blocks::RmsNorm& norm,
                                    const Tensor& x) const {
  const blocks::Params& params = context.params;
  const Tensor normed = norm.forward(params, x);
  const Routing routing = gate_->forward(params, normed);
  const Tensor in = into_latent_ ? blocks::linear(normed, into_latent_->weights(params)) : normed;
  Tensor y = kernels::experts(in, routing.indices, routing.weights,
                              experts_->weights(params, transposed_), activation_);
  if (out_of_latent_) y = blocks::linear(y, out_of_latent_->weights(params));
  if (!shared_experts_) return {y, routing.logits, routing.indices};
  Tensor shared = shared_experts_->forward(context, normed);
  if (shared_gate_)
    shared = blocks::linear(normed, shared_gate_->weights(params)).sigmoid() * shared;
  return {y + shared, routing.logits, routing.indices};
}

}  // namespace automoe::moe
