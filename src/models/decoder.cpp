#include "models/decoder.h"

#include "kernels/linear_cross_entropy.h"
#include "moe/balance_loss.h"
#include "moe/router.h"

namespace automoe::models {
namespace {

using blocks::BlockOutput;
using blocks::Context;
using blocks::Params;
using blocks::ParamScope;
using blocks::Sequences;

// hidden [B, S, H] at the positions that logits_to_keep asks for, as Transformers reads it.
Tensor keep_positions(const Tensor& hidden, const Tensor& logits_to_keep) {
  if (!logits_to_keep.defined()) return hidden;
  if (logits_to_keep.dim() > 0)
    return hidden.index_select(1, logits_to_keep.to(hidden.device(), at::kLong));
  const int64_t last = logits_to_keep.item<int64_t>();
  return last == 0 ? hidden : hidden.slice(1, std::max<int64_t>(0, hidden.size(1) - last));
}

}  // namespace

DecoderConfig DecoderConfig::read(const Json& json, const Json& defaults) {
  const Json all = with_defaults(json, defaults);
  DecoderConfig config;
  const auto integer = [&](const char* key) { return require<int64_t>(all, key); };
  config.vocab_size = integer("vocab_size");
  config.hidden_size = integer("hidden_size");
  config.intermediate_size = integer("intermediate_size");
  config.num_hidden_layers = integer("num_hidden_layers");
  config.num_attention_heads = integer("num_attention_heads");
  config.num_key_value_heads =
      value_or<int64_t>(all, "num_key_value_heads", config.num_attention_heads);
  config.head_dim =
      value_or<int64_t>(all, "head_dim", config.hidden_size / config.num_attention_heads);
  config.rms_norm_eps = require<double>(all, "rms_norm_eps");
  config.tie_word_embeddings = value_or<bool>(all, "tie_word_embeddings", false);
  config.max_position_embeddings = integer("max_position_embeddings");
  if (all.contains("pad_token_id")) {
    const int64_t id = integer("pad_token_id");
    config.pad_token_id = id < 0 ? id + config.vocab_size : id;
  }
  config.rope_parameters =
      blocks::rope_parameters(all, value_or<double>(defaults, "rope_theta", 10000.0));
  config.router_aux_loss_coef = value_or<double>(all, "router_aux_loss_coef", 0.001);
  config.num_experts_per_tok = value_or<int64_t>(all, "num_experts_per_tok", 0);
  const std::string activation = value_or<std::string>(all, "hidden_act", "silu");
  AUTOMOE_CHECK_SUPPORTED(activation == "silu", "[config] hidden_act must be 'silu' here, got '",
                          activation, "'");
  return config;
}

blocks::Attention::Options DecoderConfig::attention() const {
  return {.hidden = hidden_size,
          .heads = num_attention_heads,
          .kv_heads = num_key_value_heads,
          .head_dim = head_dim,
          .eps = rms_norm_eps};
}

void DecoderConfig::carry_prediction_layers(int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    carried.push_back(text("model.layers.", num_hidden_layers + i, ".{rest}"));
}

BlockOf DecoderConfig::dense_mlp(bool bias) const {
  return [options = blocks::Mlp::Options{hidden_size, intermediate_size, bias}](
             ParamScope scope, int64_t) { return std::make_unique<blocks::Mlp>(scope, options); };
}

LayerOf DecoderConfig::layers(const BlockOf& attention, const BlockOf& mlp) const {
  return [=, hidden = hidden_size, eps = rms_norm_eps, rounding = norm_rounding](ParamScope scope,
                                                                                 int64_t layer) {
    const auto norm = [&](const char* name) {
      return blocks::RmsNorm(scope.child(name), hidden, eps, rounding);
    };
    auto self_attn = attention(scope.child("self_attn"), layer);
    auto feed_forward = mlp(scope.child("mlp"), layer);
    std::vector<Branch> branches;
    branches.push_back({std::move(self_attn), norm("input_layernorm")});
    branches.push_back({std::move(feed_forward), norm("post_attention_layernorm")});
    return branches;
  };
}

LayerOf DecoderConfig::layers(const std::function<blocks::Attention::Options(int64_t)>& attention,
                              const BlockOf& mlp) const {
  const auto block = [=](ParamScope scope, int64_t layer) {
    return std::make_unique<blocks::Attention>(scope, attention(layer));
  };
  return layers(BlockOf(block), mlp);
}

Json tiny_config(const std::string& architecture, const std::string& model_type,
                 const Json& extra) {
  Json config = {{"architectures", {architecture}},
                 {"model_type", model_type},
                 {"vocab_size", 64},
                 {"hidden_size", 32},
                 {"intermediate_size", 48},
                 {"num_hidden_layers", 2},
                 {"num_attention_heads", 4},
                 {"num_key_value_heads", 2},
                 {"max_position_embeddings", 128}};
  config.update(extra);
  return config;
}

NameMap separate_experts() {
  return {{"model.layers.{layer}.mlp.experts.{expert}.{gate_proj,up_proj}.weight",
           "model.layers.{layer}.mlp.experts.gate_up_proj"},
          {"model.layers.{layer}.mlp.experts.{expert}.down_proj.weight",
           "model.layers.{layer}.mlp.experts.down_proj"}};
}

bool is_sliding_layer(const Json& json, int64_t layer, bool otherwise) {
  const auto types = value_or<std::vector<std::string>>(json, "layer_types", {});
  return layer < static_cast<int64_t>(types.size()) ? types[layer] == "sliding_attention"
                                                    : otherwise;
}

int64_t layer_window(const Json& json, int64_t layer) {
  const bool is_late = layer >= value_or<int64_t>(json, "max_window_layers", 28);
  if (!value_or<bool>(json, "use_sliding_window", false) || !is_sliding_layer(json, layer, is_late))
    return 0;
  return value_or<int64_t>(json, "sliding_window", 4096);
}

BlockOutput Decoder::Layer::forward(const Context& context, const Tensor& x) const {
  BlockOutput out{x, {}, {}};
  for (const Branch& branch : branches) {
    const BlockOutput added = branch.block->forward(context, branch.norm, out.y);
    out.y = out.y + added.y;
    if (added.router_logits.defined()) {
      out.router_logits = added.router_logits;
      out.indices = added.indices;
    }
  }
  return out;
}

Decoder::Decoder(const DecoderConfig& config, const LayerOf& layer_of) : config_(config) {
  if (!config.rope_parameters.is_null())
    rope_.emplace(config.rope_parameters, config.head_dim, config.max_position_embeddings);
  const ParamScope root(specs_, ""), model = root.child("model");
  embed_tokens_ =
      model.child(config.embedding_name).declare("weight", {config.vocab_size, config.hidden_size});
  layers_.reserve(config.num_hidden_layers);
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const blocks::ParamId first = model.count();
    auto branches = layer_of(model.child("layers." + std::to_string(i)), i);
    layers_.push_back({std::move(branches), first, model.count()});
  }
  norm_.emplace(model.child(config.final_norm_name), config.hidden_size, config.rms_norm_eps,
                config.norm_rounding);
  lm_head_ = config.tie_word_embeddings
                 ? embed_tokens_
                 : root.child("lm_head").declare("weight", {config.vocab_size, config.hidden_size});
}

BlockOutput Decoder::run_layer(const Layer& layer, const Context& context, const Tensor& x) const {
  if (context.recompute != Recompute::kLayer || !at::GradMode::is_enabled())
    return layer.forward(context, x);
  const std::vector<blocks::ParamId> ids = context.params.ids(layer.first, layer.last);
  blocks::Tensors inputs = context.params.select(ids);
  inputs.insert(inputs.begin(), x);
  // The closure outlives this call: it owns what it needs of the context.
  const auto body = [&layer, ids, params = context.params, sequences = context.sequences,
                     rope = context.rope](const blocks::Tensors& in) -> blocks::Tensors {
    const Params local = params.with(ids, in.data() + 1);
    const BlockOutput out = layer.forward({local, sequences, rope, Recompute::kNone}, in[0]);
    if (!out.router_logits.defined()) return {out.y};
    return {out.y, out.router_logits, out.indices};
  };
  const blocks::Tensors outputs = blocks::checkpoint(body, inputs);
  if (outputs.size() == 1) return {outputs[0], {}, {}};
  return {outputs[0], outputs[1], outputs[2]};
}

void Decoder::add_loss(const Params& params, const Sequences& sequences, const Batch& batch,
                       const Tensor& hidden, ModelOutput& out) const {
  Tensor denominator = batch.num_items_in_batch.value_or(Tensor());
  if (denominator.defined())
    denominator = denominator.masked_fill(denominator.eq(0), 1);  // loss 0, not 0 / 0
  out.loss =
      kernels::linear_cross_entropy(hidden, params[lm_head_], sequences.targets, denominator);
  if (out.aux_loss.defined()) out.loss = out.loss + config_.router_aux_loss_coef * out.aux_loss;
}

ModelOutput Decoder::forward(const Params& params, const Batch& batch,
                             const ForwardOptions& options) const {
  const Sequences sequences = Sequences::from(batch);
  Tensor x = at::embedding(params[embed_tokens_], sequences.ids, config_.pad_token_id);  // [T, H]
  const auto rope =
      rope_ ? rope_->tables(sequences.positions, x.scalar_type()) : blocks::RopeTables{};
  const Context context{params, sequences, rope, options.recompute};
  std::vector<Tensor> router_logits, counts;
  for (const Layer& layer : layers_) {
    const BlockOutput out = run_layer(layer, context, x);
    x = out.y;
    if (!out.router_logits.defined()) continue;
    router_logits.push_back(out.router_logits);
    if (options.routing_counts)
      counts.push_back(moe::count_tokens(out.indices, out.router_logits.size(1)));
  }
  x = norm_->forward(params, x);

  ModelOutput out;
  out.hidden = sequences.pad(x);
  if (options.logits)
    out.logits = at::linear(keep_positions(out.hidden, options.logits_to_keep), params[lm_head_]);
  if (options.logits && config_.fp32_logits) out.logits = out.logits.to(at::kFloat);
  if (!counts.empty()) out.routing_counts = at::stack(counts);
  if (options.router_logits && !router_logits.empty()) {
    if (config_.balance_loss)
      out.aux_loss = moe::load_balancing_loss(router_logits, config_.num_experts_per_tok);
    for (const Tensor& logits : router_logits)
      out.router_logits.push_back(sequences.pad(logits).flatten(0, 1));
  }
  if (batch.labels) add_loss(params, sequences, batch, x, out);
  return out;
}

}  // namespace automoe::models
