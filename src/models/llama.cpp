// Llama 2 and 3 (Dubey et al. 2024, arXiv 2407.21783).
#include "models/decoder.h"

namespace automoe::models {
namespace {

const Json kDefaults = {{"vocab_size", 32000},
                        {"hidden_size", 4096},
                        {"intermediate_size", 11008},
                        {"num_hidden_layers", 32},
                        {"num_attention_heads", 32},
                        {"rms_norm_eps", 1e-6},
                        {"max_position_embeddings", 2048}};

const Json kTiny = tiny_config("LlamaForCausalLM", "llama");

std::unique_ptr<Model> create(const Json& json) {
  const auto config = DecoderConfig::read(json, kDefaults);
  blocks::Attention::Options attention = config.attention();
  attention.qkv_bias = attention.output_bias = value_or<bool>(json, "attention_bias", false);
  const bool mlp_bias = value_or<bool>(json, "mlp_bias", false);
  return std::make_unique<Decoder>(
      config, config.layers([&](int64_t) { return attention; }, config.dense_mlp(mlp_bias)));
}

AUTOMOE_REGISTER_MODEL("LlamaForCausalLM", {create, {}, kTiny});

}  // namespace
}  // namespace automoe::models
