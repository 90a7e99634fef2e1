// Rotary tables of every rope_type that Transformers knows, from the config's rope_parameters.
#pragma once

#include "blocks/context.h"
#include "core/json.h"

namespace automoe::blocks {

class Rope {
 public:
  /// `rope`: v5's rope_parameters (rope_type, rope_theta, factor, ...); head_dim the width before
  /// partial_rotary_factor; max_positions the config's max_position_embeddings.
  Rope(const Json& rope, int64_t head_dim, int64_t max_positions);

  /// cos and sin, each times the attention factor, rounded to `dtype`. Looks at the largest
  /// position on the host for rope_type dynamic and longrope.
  RopeTables tables(const Tensor& positions, at::ScalarType dtype) const;

 private:
  Json rope_;
  int64_t head_dim_, max_positions_;
  bool length_dependent_;
  Tensor inverse_frequencies_;  // [d/2] fp32 on CPU
  double attention_factor_ = 1;
};

/// What DeepSeek multiplies the softmax scale by: (0.1 mscale_all_dim ln(factor) + 1)^2 where
/// `rope` stretches and has that key, else 1.
double softmax_factor(const Json& rope);

/// v5's rope_parameters from a config in v4 or v5 spelling (rope_theta, rope_scaling, "type",
/// partial_rotary_factor, original_max_position_embeddings at the top level).
Json rope_parameters(const Json& config, double default_theta);

}  // namespace automoe::blocks
