// Qwen1.5-MoE and Qwen2-MoE (arXiv 2407.10671): Qwen2 attention, softmax-routed experts beside a
// shared one behind a gate.
#include "models/sparse_mlp.h"

namespace automoe::models {
namespace {

const Json kDefaults = {{"vocab_size", 151936},
                        {"hidden_size", 2048},
                        {"intermediate_size", 5632},
                        {"num_hidden_layers", 24},
                        {"num_attention_heads", 16},
                        {"num_key_value_heads", 16},
                        {"rms_norm_eps", 1e-6},
                        {"max_position_embeddings", 32768},
                        {"qkv_bias", true},
                        {"num_experts", 60},
                        {"num_experts_per_tok", 4},
                        {"moe_intermediate_size", 1408},
                        {"shared_expert_intermediate_size", 5632},
                        {"norm_topk_prob", false}};

const Json kTiny = tiny_config("Qwen2MoeForCausalLM", "qwen2_moe",
                               {{"num_experts", 8},
                                {"num_experts_per_tok", 3},
                                {"moe_intermediate_size", 16},
                                {"shared_expert_intermediate_size", 24}});

// Without layer_types every other layer below max_window_layers has the window.
int64_t window_of(const Json& json, int64_t layer) {
  const bool otherwise = layer % 2 == 0 && layer < value_or<int64_t>(json, "max_window_layers", 28);
  const bool slides =
      value_or<bool>(json, "use_sliding_window", false) && is_sliding_layer(json, layer, otherwise);
  return slides ? value_or<int64_t>(json, "sliding_window", 4096) : 0;
}

std::unique_ptr<Model> create(const Json& given) {
  const Json json = with_defaults(given, kDefaults);
  const auto config = DecoderConfig::read(json, kDefaults);
  moe::MoeMlp::Options experts = softmax_experts(json, config);
  experts.shared_name = "shared_expert";
  experts.shared_width = require<int64_t>(json, "shared_expert_intermediate_size");
  experts.shared_gate = true;
  const auto attention = [&](int64_t layer) {
    blocks::Attention::Options options = config.attention();
    options.qkv_bias = require<bool>(json, "qkv_bias");
    options.window = window_of(json, layer);
    return options;
  };
  const BlockOf mlp =
      sparse_mlp(config, experts, [=](int64_t layer) { return is_sparse_layer(json, layer); });
  return std::make_unique<Decoder>(config, config.layers(attention, mlp));
}

AUTOMOE_REGISTER_MODEL("Qwen2MoeForCausalLM", {create, separate_experts(), kTiny});

}  // namespace
}  // namespace automoe::models
