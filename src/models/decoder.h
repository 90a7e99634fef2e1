// The decoder that most families are: embedding, layers of residual branches, final norm, head. A
// family file says which branches each layer has.
#pragma once

#include "blocks/attention.h"
#include "blocks/mlp.h"
#include "blocks/rope.h"
#include "models/model.h"

namespace automoe::models {

/// x + block(norm(x))
struct Branch {
  std::unique_ptr<blocks::Block> block;
  blocks::RmsNorm norm;
};

using BlockOf =
    std::function<std::unique_ptr<blocks::Block>(blocks::ParamScope scope, int64_t layer)>;
using LayerOf = std::function<std::vector<Branch>(blocks::ParamScope scope, int64_t layer)>;

struct DecoderConfig {  // keys as in config.json
  int64_t vocab_size, hidden_size, intermediate_size, num_hidden_layers;
  int64_t num_attention_heads, num_key_value_heads, head_dim;
  double rms_norm_eps;
  bool tie_word_embeddings;
  int64_t max_position_embeddings;
  Json rope_parameters;       // null: no rotary tables
  int64_t pad_token_id = -1;  // its embedding takes no gradient; -1: none
  bool balance_loss = true;   // where there are experts
  double router_aux_loss_coef;
  int64_t num_experts_per_tok;  // 0: no experts

  // What a family spells or does differently.
  std::string embedding_name = "embed_tokens", final_norm_name = "norm";  // below "model."
  bool fp32_logits = false;  // the caller gets logits in fp32
  blocks::RmsNorm::Rounding norm_rounding = blocks::RmsNorm::Rounding::kNormalised;
  std::vector<std::string> carried = {};  // Model::carried

  /// Carries the num_nextn_predict_layers layers behind the last one, as DeepSeek stores them.
  void carry_prediction_layers(int64_t count);

  /// Attention as these keys have it: no biases, no QK-norm, no window.
  blocks::Attention::Options attention() const;
  /// A dense gated MLP in every layer.
  BlockOf dense_mlp(bool bias = false) const;
  /// self_attn, then mlp, with norms named as in Llama.
  LayerOf layers(const BlockOf& attention, const BlockOf& mlp) const;
  LayerOf layers(const std::function<blocks::Attention::Options(int64_t layer)>& attention,
                 const BlockOf& mlp) const;

  /// The keys above; `defaults` holds the class defaults of the family for keys that may be absent.
  static DecoderConfig read(const Json& json, const Json& defaults);
};

/// A config of a few thousand parameters, for tests; `extra` adds or replaces keys.
Json tiny_config(const std::string& architecture, const std::string& model_type,
                 const Json& extra = Json::object());

/// Experts one by one on disk, gate_proj and up_proj apart, as most families have them.
NameMap separate_experts();

/// Whether layer i has a sliding window: as layer_types says, or else `otherwise`.
bool is_sliding_layer(const Json& json, int64_t layer, bool otherwise);

/// Sliding window of layer i, 0 for none, as Qwen2 and Qwen3 configs say it: layer_types, or
/// use_sliding_window and max_window_layers.
int64_t layer_window(const Json& json, int64_t layer);

class Decoder : public Model {
 public:
  Decoder(const DecoderConfig& config, const LayerOf& layer_of);
  ModelOutput forward(const blocks::Params& params, const Batch& batch,
                      const ForwardOptions& options) const override;
  bool has_experts() const override { return config_.num_experts_per_tok > 0; }
  bool has_balance_loss() const override { return has_experts() && config_.balance_loss; }
  std::vector<std::string> carried() const override { return config_.carried; }
  bool fp32_logits() const override { return config_.fp32_logits; }

 private:
  struct Layer {
    blocks::BlockOutput forward(const blocks::Context& context,
                                const Tensor& x) const;  // y is the new x

    std::vector<Branch> branches;
    blocks::ParamId first, last;  // its parameters are [first, last)
  };

  blocks::BlockOutput run_layer(const Layer& layer, const blocks::Context& context,
                                const Tensor& x) const;
  void add_loss(const blocks::Params& params, const blocks::Sequences& sequences,
                const Batch& batch, const Tensor& hidden, ModelOutput& out) const;

  DecoderConfig config_;
  std::optional<blocks::Rope> rope_;
  blocks::ParamId embed_tokens_, lm_head_;  // [V, H]; the same id where tied
  std::vector<Layer> layers_;
  std::optional<blocks::RmsNorm> norm_;
};

}  // namespace automoe::models
