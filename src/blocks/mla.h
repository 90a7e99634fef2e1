// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): keys and values of all heads come
// out of one narrow latent vector a token; a part of each key, the one that is rotated, is shared
// by all heads.
#pragma once

#include <optional>

#include "blocks/block.h"
#include "blocks/linear.h"

namespace automoe::blocks {

class LatentAttention : public Block {
 public:
  struct Options {
    int64_t hidden, heads;
    int64_t query_rank;             // of the queries' own latent; 0: none
    int64_t key_value_rank;         // C
    int64_t plain_dim, rotary_dim;  // N, R: a query and a key have N + R elements
    int64_t value_dim;              // V
    double scale;                   // of q k^T
    double eps;                     // of the latents' norms
    bool pairs = true;              // RopeOptions::pairs
    bool bias = false;              // of the layers that read and write the stream
  };
  LatentAttention(ParamScope scope, const Options& options);
  BlockOutput forward(const Context& context, const RmsNorm& norm, const Tensor& x) const override;

 private:
  struct LatentQuery {
    LatentQuery(ParamScope scope, const Options& options);
    Linear a_proj;
    RmsNorm a_layernorm;
    Linear b_proj;  // [Hq*(N+R), query_rank]
  };
  Options options_;
  std::optional<LatentQuery> latent_query_;
  std::optional<Linear> q_proj_;  // [Hq*(N+R), H], where there is no latent query
  Linear kv_a_proj_with_mqa_;     // [C+R, H]
  RmsNorm kv_a_layernorm_;        // [C]
  Linear kv_b_proj_, o_proj_;     // [Hq*(N+V), C], [H, Hq*V]
};

}  // namespace automoe::blocks
