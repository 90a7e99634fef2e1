// The feed-forward parts that several families with experts share, from their configs. A key that
// is read must be there, by with_defaults() if need be.
#pragma once

#include "models/decoder.h"
#include "moe/moe_mlp.h"

namespace automoe::models {

/// num_local_experts or num_experts: configs have either.
int64_t num_experts_in(const Json& json);

/// Experts behind a softmax router as in Qwen and Mixtral, its weights normalised if
/// norm_topk_prob, and rounded unless they stay fp32.
moe::MoeMlp::Options softmax_experts(const Json& json, const DecoderConfig& config,
                                     bool fp32_weights = false);

/// Whether layer i has experts as Qwen's keys say it: mlp_only_layers, decoder_sparse_step.
bool is_sparse_layer(const Json& json, int64_t layer);

/// DeepSeek-V3's experts: a sigmoid router; the n_shared_experts are one wide MLP.
moe::MoeMlp::Options deepseek_experts(const Json& json, const DecoderConfig& config);

/// Experts in the layers where `is_sparse`, a dense MLP in the others.
BlockOf sparse_mlp(const DecoderConfig& config, const moe::MoeMlp::Options& experts,
                   const std::function<bool(int64_t layer)>& is_sparse);

}  // namespace automoe::models
