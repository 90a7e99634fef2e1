// Mistral (Jiang et al. 2023, arXiv 2310.06825): Llama with a sliding window, 4096 unless the
// config says null.
#include "models/decoder.h"

namespace automoe::models {
namespace {

const Json kDefaults = {{"vocab_size", 32000},        {"hidden_size", 4096},
                        {"intermediate_size", 14336}, {"num_hidden_layers", 32},
                        {"num_attention_heads", 32},  {"num_key_value_heads", 8},
                        {"rms_norm_eps", 1e-6},       {"max_position_embeddings", 131072}};

const Json kTiny = tiny_config("MistralForCausalLM", "mistral", {{"sliding_window", 8}});

std::unique_ptr<Model> create(const Json& json) {
  const auto config = DecoderConfig::read(json, kDefaults);
  blocks::Attention::Options attention = config.attention();
  attention.window =
      json.contains("sliding_window") ? value_or<int64_t>(json, "sliding_window", 0) : 4096;
  return std::make_unique<Decoder>(
      config, config.layers([&](int64_t) { return attention; }, config.dense_mlp()));
}

AUTOMOE_REGISTER_MODEL("MistralForCausalLM", {create, {}, kTiny});

}  // namespace
}  // namespace automoe::models
