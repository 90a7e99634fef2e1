// Qwen3-MoE (Yang et al. 2025, arXiv 2505.09388): Qwen3 attention, softmax-routed experts.
#include "models/decoder.h"
#include "moe/moe_mlp.h"

namespace automoe::models {
namespace {

const Json kDefaults = {{"vocab_size", 151936},      {"hidden_size", 2048},
                        {"intermediate_size", 6144}, {"num_hidden_layers", 24},
                        {"num_attention_heads", 32}, {"num_key_value_heads", 4},
                        {"rms_norm_eps", 1e-6},      {"max_position_embeddings", 32768},
                        {"num_experts_per_tok", 8}};

const Json kTiny = tiny_config("Qwen3MoeForCausalLM", "qwen3_moe",
                               {{"head_dim", 8},
                                {"num_experts", 8},
                                {"num_experts_per_tok", 2},
                                {"moe_intermediate_size", 16},
                                {"norm_topk_prob", true}});

// Which layers have experts: those not in mlp_only_layers, every decoder_sparse_step-th.
struct Sparsity {
  int64_t num_experts, moe_intermediate_size, decoder_sparse_step;
  std::vector<int64_t> mlp_only_layers;

  static Sparsity read(const Json& json) {
    return {
        value_or<int64_t>(json, "num_experts", value_or<int64_t>(json, "num_local_experts", 128)),
        value_or<int64_t>(json, "moe_intermediate_size", 768),
        value_or<int64_t>(json, "decoder_sparse_step", 1),
        value_or<std::vector<int64_t>>(json, "mlp_only_layers", {})};
  }
  bool is_sparse(int64_t layer) const {
    return num_experts > 0 && (layer + 1) % decoder_sparse_step == 0 &&
           std::ranges::find(mlp_only_layers, layer) == mlp_only_layers.end();
  }
};

std::unique_ptr<Model> create(const Json& json) {
  const auto config = DecoderConfig::read(json, kDefaults);
  const Sparsity sparsity = Sparsity::read(json);
  blocks::Attention::Options attention = config.attention();
  attention.qk_norm = true;
  attention.qkv_bias = attention.output_bias = value_or<bool>(json, "attention_bias", false);
  if (value_or<bool>(json, "use_sliding_window", false))
    attention.window = value_or<int64_t>(json, "sliding_window", 4096);
  const auto mlp = [&](blocks::ParamScope scope, int64_t layer) -> std::unique_ptr<blocks::Block> {
    if (!sparsity.is_sparse(layer)) return config.dense_mlp()(scope, layer);
    const moe::SoftmaxRouter::Options router{
        .hidden = config.hidden_size,
        .num_experts = sparsity.num_experts,
        .top_k = config.num_experts_per_tok,
        .normalize = value_or<bool>(json, "norm_topk_prob", false),
        .fp32_weights = false};
    return std::make_unique<moe::MoeMlp>(
        scope, moe::MoeMlp::Options{.hidden = config.hidden_size,
                                    .width = sparsity.moe_intermediate_size,
                                    .num_experts = sparsity.num_experts,
                                    .router = moe::softmax_router(router),
                                    .gate_first = false});
  };
  return std::make_unique<Decoder>(config, config.layers([&](int64_t) { return attention; }, mlp));
}

AUTOMOE_REGISTER_MODEL("Qwen3MoeForCausalLM", {create, separate_experts(), kTiny});

}  // namespace
}  // namespace automoe::models
