// The sparse feed-forward part of a layer: router and experts.
#pragma once

#include "blocks/block.h"
#include "moe/router.h"

namespace automoe::moe {

class MoeMlp : public blocks::Block {
 public:
  struct Options {
    int64_t hidden, width, num_experts;  // H, I of one expert, E
    RouterOf router;
    bool gate_first;  // declaration order only: gate before experts (Mixtral) or after
  };
  MoeMlp(blocks::ParamScope scope, const Options& options);
  blocks::BlockOutput forward(const blocks::Context& context, const blocks::RmsNorm& norm,
                              const Tensor& x) const override;

 private:
  struct Experts {
    Experts(blocks::ParamScope scope, const Options& options);
    blocks::ParamId gate_up_proj, down_proj;  // [E, 2I, H], [E, H, I]
  };
  std::unique_ptr<Router> gate_;
  std::optional<Experts> experts_;
};

}  // namespace automoe::moe
