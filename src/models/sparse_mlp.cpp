#include "models/sparse_mlp.h"

namespace automoe::models {

int64_t num_experts_in(const Json& json) {
  return json.contains("num_local_experts") ? require<int64_t>(json, "num_local_experts")
                                            : require<int64_t>(json, "num_experts");
}

moe::MoeMlp::Options softmax_experts(const Json& json, const DecoderConfig& config,
                                     bool fp32_weights) {
  const moe::SoftmaxRouter::Options router{.hidden = config.hidden_size,
                                           .num_experts = num_experts_in(json),
                                           .top_k = config.num_experts_per_tok,
                                           .normalize = require<bool>(json, "norm_topk_prob"),
                                           .fp32_weights = fp32_weights};
  return {.hidden = config.hidden_size,
          .width = require<int64_t>(json, "moe_intermediate_size"),
          .num_experts = router.num_experts,
          .router = moe::softmax_router(router),
          .gate_first = true};
}

bool is_sparse_layer(const Json& json, int64_t layer) {
  const auto dense = value_or<std::vector<int64_t>>(json, "mlp_only_layers", {});
  return num_experts_in(json) > 0 &&
         (layer + 1) % value_or<int64_t>(json, "decoder_sparse_step", 1) == 0 &&
         std::ranges::find(dense, layer) == dense.end();
}

moe::MoeMlp::Options deepseek_experts(const Json& json, const DecoderConfig& config) {
  const auto width = require<int64_t>(json, "moe_intermediate_size");
  return {.hidden = config.hidden_size,
          .width = width,
          .num_experts = require<int64_t>(json, "n_routed_experts"),
          .router = moe::sigmoid_router(moe::SigmoidRouter::Options::read(json)),
          .gate_first = false,
          .shared_width = width * require<int64_t>(json, "n_shared_experts")};
}

BlockOf sparse_mlp(const DecoderConfig& config, const moe::MoeMlp::Options& experts,
                   const std::function<bool(int64_t layer)>& is_sparse) {
  return [=, dense = config.dense_mlp()](blocks::ParamScope scope,
                                         int64_t layer) -> std::unique_ptr<blocks::Block> {
    if (!is_sparse(layer)) return dense(scope, layer);
    return std::make_unique<moe::MoeMlp>(scope, experts);
  };
}

}  // namespace automoe::models
