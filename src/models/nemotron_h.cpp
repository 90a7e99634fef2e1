// Nemotron-H (arXiv 2504.03624) and Nemotron 3 (Nano, Super, Ultra): every layer is one mixer, a
// Mamba-2 scan, attention without positions, a squared-ReLU MLP, or experts of those.
#include <map>

#include "blocks/mamba2.h"
#include "models/decoder.h"
#include "moe/moe_mlp.h"

namespace automoe::models {
namespace {

const Json kDefaults = {{"vocab_size", 131072},
                        {"hidden_size", 4096},
                        {"intermediate_size", 21504},
                        {"num_attention_heads", 32},
                        {"num_key_value_heads", 8},
                        {"head_dim", 128},
                        {"max_position_embeddings", 4096},
                        {"layer_norm_epsilon", 1e-5},
                        {"mlp_hidden_act", "relu2"},
                        {"mlp_bias", false},
                        {"mamba_num_heads", 128},
                        {"mamba_head_dim", 64},
                        {"mamba_hidden_act", "silu"},
                        {"ssm_state_size", 128},
                        {"n_groups", 8},
                        {"conv_kernel", 4},
                        {"chunk_size", 128},
                        {"time_step_min", 0.001},
                        {"use_bias", false},
                        {"use_conv_bias", true},
                        {"n_routed_experts", 8},
                        {"num_experts_per_tok", 2},
                        {"moe_intermediate_size", 7688},
                        {"moe_shared_expert_intermediate_size", 7688},
                        {"n_group", 1},
                        {"topk_group", 1},
                        {"norm_topk_prob", true},
                        {"routed_scaling_factor", 1.0}};

// Names of old configs; they win, as in Transformers.
const std::map<std::string, std::string> kOldKeys = {{"mamba_n_groups", "n_groups"},
                                                     {"mamba_d_conv", "conv_kernel"},
                                                     {"mamba_dt_min", "time_step_min"},
                                                     {"mamba_conv_bias", "use_conv_bias"},
                                                     {"mamba_chunk_size", "chunk_size"}};

const Json kTiny =
    tiny_config("NemotronHForCausalLM", "nemotron_h",
                {{"layers_block_type",
                  {"linear_attention", "moe", "full_attention", "mlp", "linear_attention"}},
                 {"num_hidden_layers", 5},
                 {"head_dim", 8},
                 {"mamba_num_heads", 6},
                 {"mamba_head_dim", 8},
                 {"ssm_state_size", 5},
                 {"n_groups", 2},
                 {"chunk_size", 8},
                 {"n_routed_experts", 8},
                 {"num_experts_per_tok", 3},
                 {"n_group", 4},
                 {"topk_group", 2},
                 {"routed_scaling_factor", 2.5},
                 {"moe_intermediate_size", 24},
                 {"moe_shared_expert_intermediate_size", 40},
                 {"moe_latent_size", 16}});

const NameMap kNames = {
    {"backbone.layers.{layer}.mixer.experts.{expert}.up_proj.weight",
     "model.layers.{layer}.mixer.experts.up_proj"},
    {"backbone.layers.{layer}.mixer.experts.{expert}.down_proj.weight",
     "model.layers.{layer}.mixer.experts.down_proj"},
    {"backbone.{rest}", "model.{rest}"},
};

enum class Mixer { kMamba, kAttention, kMlp, kExperts };

// One word or letter per layer, in every spelling there has been.
const std::map<std::string, Mixer> kMixers = {{"linear_attention", Mixer::kMamba},
                                              {"mamba", Mixer::kMamba},
                                              {"M", Mixer::kMamba},
                                              {"full_attention", Mixer::kAttention},
                                              {"attention", Mixer::kAttention},
                                              {"*", Mixer::kAttention},
                                              {"mlp", Mixer::kMlp},
                                              {"-", Mixer::kMlp},
                                              {"moe", Mixer::kExperts},
                                              {"E", Mixer::kExperts}};

std::vector<Mixer> mixers_of(const Json& json) {
  std::vector<std::string> words;
  for (const char* key : {"layers_block_type", "layer_types"})
    if (words.empty()) words = value_or<std::vector<std::string>>(json, key, {});
  if (words.empty())
    for (const char letter : value_or<std::string>(json, "hybrid_override_pattern", "ME*-"))
      words.emplace_back(1, letter);
  std::vector<Mixer> mixers;
  for (const std::string& word : words) {
    const auto found = kMixers.find(word);
    AUTOMOE_CHECK_VALUE(found != kMixers.end(), "[config] layer ", mixers.size(), " is '", word,
                        "'; expected linear_attention (M), full_attention (*), mlp (-) or moe (E)");
    mixers.push_back(found->second);
  }
  return mixers;
}

blocks::Mamba2::Options mamba_options(const Json& json, const DecoderConfig& config) {
  const auto integer = [&](const char* key) { return require<int64_t>(json, key); };
  return {.hidden = config.hidden_size,
          .heads = integer("mamba_num_heads"),
          .head_dim = integer("mamba_head_dim"),
          .groups = integer("n_groups"),
          .state = integer("ssm_state_size"),
          .conv_kernel = integer("conv_kernel"),
          .chunk_size = integer("chunk_size"),
          .min_step = require<double>(json, "time_step_min"),
          .eps = config.rms_norm_eps,
          .bias = require<bool>(json, "use_bias"),
          .conv_bias = require<bool>(json, "use_conv_bias")};
}

moe::MoeMlp::Options experts_options(const Json& json, const DecoderConfig& config) {
  const auto integer = [&](const char* key) { return require<int64_t>(json, key); };
  return {.hidden = config.hidden_size,
          .width = integer("moe_intermediate_size"),
          .num_experts = integer("n_routed_experts"),
          .router = moe::sigmoid_router(moe::SigmoidRouter::Options::read(json)),
          .gate_first = false,
          .activation = {.kind = kernels::Activation::kReluSquared},
          .shared_width = integer("moe_shared_expert_intermediate_size"),
          .latent = value_or<int64_t>(json, "moe_latent_size", 0),
          .dense_bias = require<bool>(json, "mlp_bias")};
}

std::unique_ptr<Model> create(const Json& given) {
  Json json = with_defaults(given, kDefaults);
  for (const auto& [old, now] : kOldKeys)
    if (given.contains(old)) json[now] = given[old];
  for (const auto& [key, only] :
       {std::pair{"mlp_hidden_act", "relu2"}, {"mamba_hidden_act", "silu"}})
    AUTOMOE_CHECK_SUPPORTED(json[key] == only, "[config] ", key, " must be '", only, "' here, got ",
                            json[key].dump());
  const std::vector<Mixer> mixers = mixers_of(json);
  json["num_hidden_layers"] = mixers.size();
  json["rms_norm_eps"] = json["layer_norm_epsilon"];
  auto config = DecoderConfig::read(json, kDefaults);
  if (std::ranges::find(mixers, Mixer::kExperts) == mixers.end()) config.num_experts_per_tok = 0;
  config.balance_loss = false;
  config.rope_parameters = nullptr;
  config.pad_token_id = -1;            // whatever the file says, as in Transformers
  config.tie_word_embeddings = false;  // whatever the file says, as in Transformers
  config.embedding_name = "embeddings";
  config.final_norm_name = "norm_f";
  config.fp32_logits = true;
  config.carried = {"mtp.{rest}"};
  auto attention = config.attention();
  attention.rope = false;
  const blocks::Mlp::Options mlp{.hidden = config.hidden_size,
                                 .width = config.intermediate_size,
                                 .bias = require<bool>(json, "mlp_bias"),
                                 .gated = false};
  const auto mixer = [&](blocks::ParamScope scope,
                         int64_t layer) -> std::unique_ptr<blocks::Block> {
    switch (mixers[layer]) {
      case Mixer::kMamba:
        return std::make_unique<blocks::Mamba2>(scope, mamba_options(json, config));
      case Mixer::kAttention:
        return std::make_unique<blocks::Attention>(scope, attention);
      case Mixer::kMlp:
        return std::make_unique<blocks::Mlp>(scope, mlp);
      case Mixer::kExperts:
        break;
    }
    return std::make_unique<moe::MoeMlp>(scope, experts_options(json, config));
  };
  return std::make_unique<Decoder>(config, [&](blocks::ParamScope scope, int64_t layer) {
    blocks::RmsNorm norm(scope.child("norm"), config.hidden_size, config.rms_norm_eps);
    std::vector<Branch> branches;
    branches.push_back({mixer(scope.child("mixer"), layer), norm});
    return branches;
  });
}

AUTOMOE_REGISTER_MODEL("NemotronHForCausalLM", {create, kNames, kTiny});

}  // namespace
}  // namespace automoe::models
