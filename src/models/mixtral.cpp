// Mixtral (Jiang et al. 2024, arXiv 2401.04088): Mistral attention, renormalised softmax-routed
// experts.
#include "models/decoder.h"
#include "moe/moe_mlp.h"

namespace automoe::models {
namespace {

const Json kDefaults = {{"vocab_size", 32000},        {"hidden_size", 4096},
                        {"intermediate_size", 14336}, {"num_hidden_layers", 32},
                        {"num_attention_heads", 32},  {"num_key_value_heads", 8},
                        {"rms_norm_eps", 1e-5},       {"max_position_embeddings", 131072},
                        {"rope_theta", 1e6},          {"num_experts_per_tok", 2}};

const Json kTiny = tiny_config("MixtralForCausalLM", "mixtral",
                               {{"num_local_experts", 4}, {"num_experts_per_tok", 2}});

const NameMap kNames = {
    {"model.layers.{layer}.block_sparse_moe.gate.weight", "model.layers.{layer}.mlp.gate.weight"},
    {"model.layers.{layer}.block_sparse_moe.experts.{expert}.{w1,w3}.weight",
     "model.layers.{layer}.mlp.experts.gate_up_proj"},
    {"model.layers.{layer}.block_sparse_moe.experts.{expert}.w2.weight",
     "model.layers.{layer}.mlp.experts.down_proj"},
};

std::unique_ptr<Model> create(const Json& json) {
  const auto config = DecoderConfig::read(json, kDefaults);
  blocks::Attention::Options attention = config.attention();
  attention.window = value_or<int64_t>(json, "sliding_window", 0);
  const moe::SoftmaxRouter::Options router{
      .hidden = config.hidden_size,
      .num_experts =
          value_or<int64_t>(json, "num_local_experts", value_or<int64_t>(json, "num_experts", 8)),
      .top_k = config.num_experts_per_tok,
      .normalize = true,
      .fp32_weights = true};
  const auto mlp = [&](blocks::ParamScope scope, int64_t) -> std::unique_ptr<blocks::Block> {
    return std::make_unique<moe::MoeMlp>(scope,
                                         moe::MoeMlp::Options{.hidden = config.hidden_size,
                                                              .width = config.intermediate_size,
                                                              .num_experts = router.num_experts,
                                                              .router = moe::softmax_router(router),
                                                              .gate_first = true});
  };
  return std::make_unique<Decoder>(config, config.layers([&](int64_t) { return attention; }, mlp));
}

AUTOMOE_REGISTER_MODEL("MixtralForCausalLM", {create, kNames, kTiny});

}  // namespace
}  // namespace automoe::models
