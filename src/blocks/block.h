// A residual branch of a layer: attention, a dense MLP, experts. The decoder adds what it gives to
// the stream.
#pragma once

#include "blocks/rms_norm.h"

namespace automoe::blocks {

struct BlockOutput {
  Tensor y;              // [T, H]
  Tensor router_logits;  // [T, E]; undefined without experts
  Tensor indices;        // [T, K] int64, the experts chosen; undefined without experts
};

class Block {
 public:
  virtual ~Block() = default;
  /// block(norm(x)): [T, H] -> [T, H]
  virtual BlockOutput forward(const Context& context, const RmsNorm& norm,
                              const Tensor& x) const = 0;
};

}  // namespace automoe::blocks
