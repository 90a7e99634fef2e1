// OLMoE (arXiv 2409.02060): queries and keys normed over all heads, softmax-routed experts.
#include "models/sparse_mlp.h"

namespace automoe::models {
namespace {

const Json kDefaults = {{"vocab_size", 50304},
                        {"hidden_size", 2048},
                        {"intermediate_size", 2048},
                        {"num_hidden_layers", 16},
                        {"num_attention_heads", 16},
                        {"rms_norm_eps", 1e-5},
                        {"max_position_embeddings", 4096},
                        {"attention_bias", false},
                        {"num_experts", 64},
                        {"num_experts_per_tok", 8},
                        {"norm_topk_prob", false},
                        {"router_aux_loss_coef", 0.01}};

const Json kTiny = tiny_config(
    "OlmoeForCausalLM", "olmoe",
    {{"intermediate_size", 16}, {"num_experts", 8}, {"num_experts_per_tok", 3}, {"clip_qkv", 1.5}});

std::unique_ptr<Model> create(const Json& given) {
  Json json = with_defaults(given, kDefaults);
  if (!given.contains("pad_token_id")) json["pad_token_id"] = 1;  // null: none
  json["moe_intermediate_size"] = json["intermediate_size"];
  const auto config = DecoderConfig::read(json, kDefaults);
  blocks::Attention::Options attention = config.attention();
  attention.qkv_bias = attention.output_bias = require<bool>(json, "attention_bias");
  attention.qk_norm = blocks::QkNorm::kAllHeads;
  attention.clip = value_or<double>(json, "clip_qkv", 0);
  const BlockOf mlp =
      sparse_mlp(config, softmax_experts(json, config), [](int64_t) { return true; });
  return std::make_unique<Decoder>(config, config.layers([&](int64_t) { return attention; }, mlp));
}

AUTOMOE_REGISTER_MODEL("OlmoeForCausalLM", {create, separate_experts(), kTiny});

}  // namespace
}  // namespace automoe::models
