// The state-space mixer of Mamba-2 (Dao and Gu 2024, arXiv 2405.21060), as Nemotron-H has it.
#pragma once

#include "blocks/block.h"
#include "blocks/linear.h"

namespace automoe::blocks {

/// in_proj gives gate, x, b, c and step sizes; x, b and c go through a short convolution; the scan
/// makes y of them; out_proj takes norm(y * silu(gate)). State and convolution begin anew in every
/// document.
class Mamba2 : public Block {
 public:
  struct Options {
    int64_t hidden, heads, head_dim;
    int64_t groups, state;  // heads / groups heads share b and c [state]
    int64_t conv_kernel, chunk_size;
    double min_step, eps;
    bool bias = false, conv_bias = true;

    int64_t width() const { return heads * head_dim; }
    int64_t conv_width() const { return width() + 2 * groups * state; }  // x, b, c
  };
  Mamba2(ParamScope scope, const Options& options);
  BlockOutput forward(const Context& context, const RmsNorm& norm, const Tensor& x) const override;

 private:
  Options options_;
  ParamId dt_bias_, a_log_, d_;      // [heads]
  ParamId conv_weight_, conv_bias_;  // [conv_width, 1, conv_kernel], [conv_width]
  Linear in_proj_;                   // [width + conv_width + heads, H]
  ParamId norm_weight_;              // [width]
  Linear out_proj_;                  // [H, width]
};

}  // namespace automoe::blocks
