// GLM-4.5 (arXiv 2508.06471): grouped-query attention with half of each head rotated, DeepSeek-V3's
// experts.
#include "models/sparse_mlp.h"

namespace automoe::models {
namespace {

const Json kDefaults = {{"vocab_size", 151552},
                        {"hidden_size", 4096},
                        {"intermediate_size", 10944},
                        {"num_hidden_layers", 46},
                        {"num_attention_heads", 96},
                        {"num_key_value_heads", 8},
                        {"rms_norm_eps", 1e-5},
                        {"max_position_embeddings", 131072},
                        {"partial_rotary_factor", 0.5},
                        {"attention_bias", false},
                        {"use_qk_norm", false},
                        {"moe_intermediate_size", 1408},
                        {"num_experts_per_tok", 8},
                        {"n_shared_experts", 1},
                        {"n_routed_experts", 128},
                        {"routed_scaling_factor", 1.0},
                        {"n_group", 1},
                        {"topk_group", 1},
                        {"first_k_dense_replace", 1},
                        {"norm_topk_prob", true},
                        {"num_nextn_predict_layers", 1}};

const Json kTiny = tiny_config("Glm4MoeForCausalLM", "glm4_moe",
                               {{"head_dim", 8},
                                {"partial_rotary_factor", 0.5},
                                {"attention_bias", true},
                                {"use_qk_norm", true},
                                {"moe_intermediate_size", 16},
                                {"n_routed_experts", 8},
                                {"num_experts_per_tok", 3},
                                {"routed_scaling_factor", 1.5}});

std::unique_ptr<Model> create(const Json& given) {
  const Json json = with_defaults(given, kDefaults);
  auto config = DecoderConfig::read(json, kDefaults);
  config.balance_loss = false;
  config.carry_prediction_layers(require<int64_t>(json, "num_nextn_predict_layers"));
  blocks::Attention::Options attention = config.attention();
  attention.qkv_bias = require<bool>(json, "attention_bias");
  if (require<bool>(json, "use_qk_norm")) attention.qk_norm = blocks::QkNorm::kPerHead;
  const auto first_sparse = require<int64_t>(json, "first_k_dense_replace");
  const BlockOf mlp = sparse_mlp(config, deepseek_experts(json, config),
                                 [=](int64_t layer) { return layer >= first_sparse; });
  return std::make_unique<Decoder>(config, config.layers([&](int64_t) { return attention; }, mlp));
}

AUTOMOE_REGISTER_MODEL("Glm4MoeForCausalLM", {create, separate_experts(), kTiny});

}  // namespace
}  // namespace automoe::models
