// Qwen3-MoE (Yang et al. 2025, arXiv 2505.09388): Qwen3 attention, softmax-routed experts.
#include "models/sparse_mlp.h"

namespace automoe::models {
namespace {

const Json kDefaults = {{"vocab_size", 151936},         {"hidden_size", 2048},
                        {"intermediate_size", 6144},    {"num_hidden_layers", 24},
                        {"num_attention_heads", 32},    {"num_key_value_heads", 4},
                        {"rms_norm_eps", 1e-6},         {"max_position_embeddings", 32768},
                        {"num_experts", 128},           {"num_experts_per_tok", 8},
                        {"moe_intermediate_size", 768}, {"norm_topk_prob", false}};

const Json kTiny = tiny_config("Qwen3MoeForCausalLM", "qwen3_moe",
                               {{"head_dim", 8},
                                {"num_experts", 8},
                                {"num_experts_per_tok", 2},
                                {"moe_intermediate_size", 16},
                                {"norm_topk_prob", true}});

std::unique_ptr<Model> create(const Json& given) {
  const Json json = with_defaults(given, kDefaults);
  const auto config = DecoderConfig::read(json, kDefaults);
  blocks::Attention::Options attention = config.attention();
  attention.qk_norm = blocks::QkNorm::kPerHead;
  attention.qkv_bias = attention.output_bias = value_or<bool>(json, "attention_bias", false);
  if (value_or<bool>(json, "use_sliding_window", false))
    attention.window = value_or<int64_t>(json, "sliding_window", 4096);
  moe::MoeMlp::Options experts = softmax_experts(json, config);
  experts.gate_first = false;
  const BlockOf mlp =
      sparse_mlp(config, experts, [=](int64_t layer) { return is_sparse_layer(json, layer); });
  return std::make_unique<Decoder>(config, config.layers([&](int64_t) { return attention; }, mlp));
}

AUTOMOE_REGISTER_MODEL("Qwen3MoeForCausalLM", {create, separate_experts(), kTiny});

}  // namespace
}  // namespace automoe::models
