// Qwen2 and Qwen2.5 (Yang et al. 2024, arXiv 2407.10671): Llama with biases on q, k and v.
#include "models/decoder.h"

namespace automoe::models {
namespace {

const Json kDefaults = {{"vocab_size", 151936},       {"hidden_size", 4096},
                        {"intermediate_size", 22016}, {"num_hidden_layers", 32},
                        {"num_attention_heads", 32},  {"num_key_value_heads", 32},
                        {"rms_norm_eps", 1e-6},       {"max_position_embeddings", 32768}};

const Json kTiny = tiny_config("Qwen2ForCausalLM", "qwen2");

std::unique_ptr<Model> create(const Json& json) {
  const auto config = DecoderConfig::read(json, kDefaults);
  const auto attention = [&](int64_t layer) {
    blocks::Attention::Options options = config.attention();
    options.qkv_bias = true;
    options.window = layer_window(json, layer);
    return options;
  };
  return std::make_unique<Decoder>(config, config.layers(attention, config.dense_mlp()));
}

AUTOMOE_REGISTER_MODEL("Qwen2ForCausalLM", {create, {}, kTiny});

}  // namespace
}  // namespace automoe::models
