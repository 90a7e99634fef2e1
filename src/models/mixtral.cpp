// Mixtral (Jiang et al. 2024, arXiv 2401.04088): Mistral attention, renormalised softmax-routed
// experts.
#include "models/sparse_mlp.h"

namespace automoe::models {
namespace {

const Json kDefaults = {{"vocab_size", 32000},        {"hidden_size", 4096},
                        {"intermediate_size", 14336}, {"num_hidden_layers", 32},
                        {"num_attention_heads", 32},  {"num_key_value_heads", 8},
                        {"rms_norm_eps", 1e-5},       {"max_position_embeddings", 131072},
                        {"rope_theta", 1e6},          {"num_experts", 8},
                        {"num_experts_per_tok", 2}};

const Json kTiny = tiny_config("MixtralForCausalLM", "mixtral",
                               {{"num_local_experts", 4}, {"num_experts_per_tok", 2}});

const NameMap kNames = {
    {"model.layers.{layer}.block_sparse_moe.gate.weight", "model.layers.{layer}.mlp.gate.weight"},
    {"model.layers.{layer}.block_sparse_moe.experts.{expert}.{w1,w3}.weight",
     "model.layers.{layer}.mlp.experts.gate_up_proj"},
    {"model.layers.{layer}.block_sparse_moe.experts.{expert}.w2.weight",
     "model.layers.{layer}.mlp.experts.down_proj"},
};

std::unique_ptr<Model> create(const Json& given) {
  Json json = with_defaults(given, kDefaults);
  json["norm_topk_prob"] = true;
  json["moe_intermediate_size"] = json["intermediate_size"];
  const auto config = DecoderConfig::read(json, kDefaults);
  blocks::Attention::Options attention = config.attention();
  attention.window = value_or<int64_t>(json, "sliding_window", 0);
  const moe::MoeMlp::Options experts = softmax_experts(json, config, /*fp32_weights=*/true);
  const BlockOf mlp = sparse_mlp(config, experts, [](int64_t) { return true; });
  return std::make_unique<Decoder>(config, config.layers([&](int64_t) { return attention; }, mlp));
}

AUTOMOE_REGISTER_MODEL("MixtralForCausalLM", {create, kNames, kTiny});

}  // namespace
}  // namespace automoe::models
