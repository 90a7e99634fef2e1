// The load-balancing loss of Switch Transformer (Fedus et al. 2021, arXiv 2101.03961, eq. 4-6) as
// Transformers computes it: one mean over all layers together.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace automoe::moe {

/// router_logits: per MoE layer [T, E], real tokens only. With f_e the tokens sent to expert e and
/// P_e the mean router probability, both over all layers' tokens: E * sum_e f_e P_e -> scalar fp32.
/// The top K are taken from the probabilities in the logits' dtype. The gradient goes through P
/// alone.
at::Tensor load_balancing_loss(const std::vector<at::Tensor>& router_logits, int64_t top_k);

}  // namespace automoe::moe
