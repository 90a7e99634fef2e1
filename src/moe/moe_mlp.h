// The sparse feed-forward part of a layer: router and experts.
#pragma once

#include "blocks/mlp.h"
#include "moe/router.h"

namespace automoe::moe {

class MoeMlp : public blocks::Mlp {
 public:
  struct Options {
    int64_t hidden, width;  // H, I of one expert
    SoftmaxRouter::Options router;
    bool gate_first;  // declaration order only: gate before experts (Mixtral) or after
  };
  MoeMlp(blocks::ParamScope scope, const Options& options);
  blocks::MlpOutput forward(const blocks::Context& context, const blocks::RmsNorm& norm,
                            const Tensor& x) const override;

 private:
  struct Experts {
    Experts(blocks::ParamScope scope, const Options& options);
    blocks::ParamId gate_up_proj, down_proj;  // [E, 2I, H], [E, H, I]
  };
  std::optional<SoftmaxRouter> gate_;
  std::optional<Experts> experts_;
};

}  // namespace automoe::moe
