// DeepSeek-V3 (arXiv 2412.19437), and what shares its architecture: Moonlight, Kimi-K2. Multi-head
// latent attention; dense layers, then experts behind a sigmoid router, with an expert for all.
#include <cmath>

#include "blocks/mla.h"
#include "models/sparse_mlp.h"

namespace automoe::models {
namespace {

const Json kDefaults = {{"vocab_size", 129280},
                        {"hidden_size", 7168},
                        {"intermediate_size", 18432},
                        {"moe_intermediate_size", 2048},
                        {"num_hidden_layers", 61},
                        {"num_attention_heads", 128},
                        {"n_shared_experts", 1},
                        {"n_routed_experts", 256},
                        {"routed_scaling_factor", 2.5},
                        {"kv_lora_rank", 512},
                        {"qk_rope_head_dim", 64},
                        {"qk_nope_head_dim", 128},
                        {"v_head_dim", 128},
                        {"n_group", 8},
                        {"topk_group", 4},
                        {"num_experts_per_tok", 8},
                        {"first_k_dense_replace", 3},
                        {"norm_topk_prob", true},
                        {"rms_norm_eps", 1e-6},
                        {"max_position_embeddings", 4096},
                        {"rope_interleave", true},
                        {"attention_bias", false},
                        {"num_nextn_predict_layers", 1}};
constexpr int64_t kDefaultQueryRank = 1536;
constexpr double kLatentEps = 1e-6;  // whatever rms_norm_eps says

const Json kTiny = tiny_config("DeepseekV3ForCausalLM", "deepseek_v3",
                               {{"num_key_value_heads", 4},
                                {"moe_intermediate_size", 16},
                                {"n_routed_experts", 8},
                                {"num_experts_per_tok", 3},
                                {"n_group", 4},
                                {"topk_group", 2},
                                {"n_shared_experts", 2},
                                {"first_k_dense_replace", 1},
                                {"q_lora_rank", 12},
                                {"kv_lora_rank", 16},
                                {"qk_nope_head_dim", 6},
                                {"qk_rope_head_dim", 8},
                                {"v_head_dim", 10},
                                {"rms_norm_eps", 1e-5}});

blocks::LatentAttention::Options attention_options(const Json& json, const DecoderConfig& config) {
  const auto integer = [&](const char* key) { return require<int64_t>(json, key); };
  const int64_t plain = integer("qk_nope_head_dim"), rotary = integer("qk_rope_head_dim");
  return {.hidden = config.hidden_size,
          .heads = config.num_attention_heads,
          .query_rank = value_or<int64_t>(json, "q_lora_rank", 0),
          .key_value_rank = integer("kv_lora_rank"),
          .plain_dim = plain,
          .rotary_dim = rotary,
          .value_dim = integer("v_head_dim"),
          .scale = blocks::softmax_factor(config.rope_parameters) /
                   std::sqrt(static_cast<double>(plain + rotary)),
          .eps = kLatentEps,
          .pairs = require<bool>(json, "rope_interleave"),
          .bias = require<bool>(json, "attention_bias")};
}

std::unique_ptr<Model> create(const Json& given) {
  Json json = with_defaults(given, kDefaults);
  if (!given.contains("q_lora_rank")) json["q_lora_rank"] = kDefaultQueryRank;  // null: none
  json["head_dim"] = json["qk_rope_head_dim"];
  auto config = DecoderConfig::read(json, kDefaults);
  config.balance_loss = false;
  config.carry_prediction_layers(require<int64_t>(json, "num_nextn_predict_layers"));
  AUTOMOE_CHECK_VALUE(config.num_key_value_heads == config.num_attention_heads,
                      "[config] latent attention has a key head for each of its ",
                      config.num_attention_heads, " query heads; num_key_value_heads is ",
                      config.num_key_value_heads);
  const auto attention_of = attention_options(json, config);
  const auto first_sparse = require<int64_t>(json, "first_k_dense_replace");
  const BlockOf attention = [&](blocks::ParamScope scope, int64_t) {
    return std::make_unique<blocks::LatentAttention>(scope, attention_of);
  };
  const BlockOf mlp = sparse_mlp(config, deepseek_experts(json, config),
                                 [=](int64_t layer) { return layer >= first_sparse; });
  return std::make_unique<Decoder>(config, config.layers(attention, mlp));
}

AUTOMOE_REGISTER_MODEL("DeepseekV3ForCausalLM", {create, separate_experts(), kTiny});

}  // namespace
}  // namespace automoe::models
