// GPT-OSS (OpenAI 2025, arXiv 2508.10925): attention with sinks, sliding in every other layer;
// experts with biases and a clamped SwiGLU, whose matrices are stored [E, in, out].
#include "models/decoder.h"
#include "moe/moe_mlp.h"

namespace automoe::models {
namespace {

const Json kDefaults = {{"vocab_size", 201088},
                        {"hidden_size", 2880},
                        {"intermediate_size", 2880},
                        {"num_hidden_layers", 36},
                        {"num_attention_heads", 64},
                        {"num_key_value_heads", 8},
                        {"head_dim", 64},
                        {"rms_norm_eps", 1e-5},
                        {"max_position_embeddings", 131072},
                        {"num_experts_per_tok", 4},
                        {"rope_theta", 150000.0},
                        {"rope_parameters",
                         {{"rope_type", "yarn"},
                          {"factor", 32.0},
                          {"beta_fast", 32.0},
                          {"beta_slow", 1.0},
                          {"truncate", false},
                          {"original_max_position_embeddings", 4096}}}};

const Json kTiny = tiny_config("GptOssForCausalLM", "gpt_oss",
                               {{"intermediate_size", 32},
                                {"head_dim", 8},
                                {"num_local_experts", 4},
                                {"num_experts_per_tok", 2},
                                {"sliding_window", 4},
                                {"swiglu_limit", 1.0},
                                {"rope_parameters",
                                 {{"rope_type", "yarn"},
                                  {"rope_theta", 150000.0},
                                  {"factor", 4.0},
                                  {"beta_fast", 32.0},
                                  {"beta_slow", 1.0},
                                  {"truncate", false},
                                  {"original_max_position_embeddings", 32}}}});

// As published the matrices of the experts are MXFP4; they are saved as they are in memory.
const NameMap kNames = {
    {"model.layers.{layer}.mlp.experts.gate_up_proj",
     "model.layers.{layer}.mlp.experts.gate_up_proj", Quantised::kMxfp4},
    {"model.layers.{layer}.mlp.experts.down_proj", "model.layers.{layer}.mlp.experts.down_proj",
     Quantised::kMxfp4},
};

// Layers alternate, the first one sliding, unless layer_types says which are.
int64_t window_of(const Json& json, int64_t layer) {
  const bool slides = is_sliding_layer(json, layer, /*otherwise=*/layer % 2 == 0);
  return slides ? value_or<int64_t>(json, "sliding_window", 128) : 0;
}

std::unique_ptr<Model> create(const Json& json) {
  auto config = DecoderConfig::read(json, kDefaults);
  config.norm_rounding = blocks::RmsNorm::Rounding::kResultOnly;
  const auto attention = [&](int64_t layer) {
    blocks::Attention::Options options = config.attention();
    options.qkv_bias = options.output_bias = value_or<bool>(json, "attention_bias", true);
    options.sinks = true;
    options.window = window_of(json, layer);
    return options;
  };
  const moe::SoftmaxRouter::Options router{
      .hidden = config.hidden_size,
      .num_experts =
          value_or<int64_t>(json, "num_local_experts", value_or<int64_t>(json, "num_experts", 128)),
      .top_k = config.num_experts_per_tok,
      .normalize = true,
      .fp32_weights = false,
      .bias = true};
  const moe::MoeMlp::Options experts{
      .hidden = config.hidden_size,
      .width = config.intermediate_size,
      .num_experts = router.num_experts,
      .router = moe::softmax_router(router),
      .gate_first = true,
      .gate_name = "router",
      .activation = {.kind = kernels::Activation::kClampedSwiglu,
                     .alpha = value_or<double>(json, "swiglu_alpha", 1.702),
                     .limit = value_or<double>(json, "swiglu_limit", 7.0)},
      .biases = true,
      .transposed = true};
  const auto mlp = [&](blocks::ParamScope scope, int64_t) {
    return std::make_unique<moe::MoeMlp>(scope, experts);
  };
  return std::make_unique<Decoder>(config, config.layers(attention, BlockOf(mlp)));
}

AUTOMOE_REGISTER_MODEL("GptOssForCausalLM", {create, kNames, kTiny});

}  // namespace
}  // namespace automoe::models
