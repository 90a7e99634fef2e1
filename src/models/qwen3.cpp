// Qwen3 dense (Yang et al. 2025, arXiv 2505.09388): QK-norm, no biases.
#include "models/decoder.h"

namespace automoe::models {
namespace {

const Json kDefaults = {
    {"vocab_size", 151936},    {"hidden_size", 4096},       {"intermediate_size", 22016},
    {"num_hidden_layers", 32}, {"num_attention_heads", 32}, {"num_key_value_heads", 32},
    {"head_dim", 128},         {"rms_norm_eps", 1e-6},      {"max_position_embeddings", 32768}};

const Json kTiny = tiny_config("Qwen3ForCausalLM", "qwen3", {{"head_dim", 16}});

std::unique_ptr<Model> create(const Json& json) {
  const auto config = DecoderConfig::read(json, kDefaults);
  const bool bias = value_or<bool>(json, "attention_bias", false);
  const auto attention = [&](int64_t layer) {
    blocks::Attention::Options options = config.attention();
    options.qk_norm = blocks::QkNorm::kPerHead;
    options.qkv_bias = options.output_bias = bias;
    options.window = layer_window(json, layer);
    return options;
  };
  return std::make_unique<Decoder>(config, config.layers(attention, config.dense_mlp()));
}

AUTOMOE_REGISTER_MODEL("Qwen3ForCausalLM", {create, {}, kTiny});

}  // namespace
}  // namespace automoe::models
