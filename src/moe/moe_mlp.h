// The sparse feed-forward part of a layer: router, experts, experts that all tokens share.
#pragma once

#include <optional>

#include "blocks/mlp.h"
#include "kernels/experts.h"
#include "moe/router.h"

namespace automoe::moe {

class MoeMlp : public blocks::Block {
 public:
  struct Options {
    int64_t hidden, width, num_experts;  // H, I of one expert, E
    RouterOf router;
    bool gate_first;  // declaration order only: gate before experts (Mixtral) or after
    std::string gate_name = "gate";
    kernels::Activation activation{};
    bool biases = false;       // the experts' own
    bool transposed = false;   // matrices are stored [E, in, out]
    int64_t shared_width = 0;  // of one MLP that every token takes as well; 0: none
    std::string shared_name = "shared_experts";
    bool shared_gate = false;  // "<shared_name>_gate": the sigmoid of a product with it scales them
    int64_t latent = 0;        // width in which the experts work, between two projections; 0: H
    bool dense_bias = false;   // of the shared MLP and the projections
  };
  MoeMlp(blocks::ParamScope scope, const Options& options);
  blocks::BlockOutput forward(const blocks::Context& context, const blocks::RmsNorm& norm,
                              const Tensor& x) const override;

 private:
  struct Experts {
    Experts(blocks::ParamScope scope, const Options& options);
    kernels::ExpertWeights weights(const blocks::Params& params, bool transposed) const;

    blocks::ParamId up, up_bias, down, down_bias;  // [E, N, H], [E, N], [E, H, I], [E, H]
  };
  kernels::Activation activation_;
  bool transposed_;
  std::unique_ptr<Router> gate_;
  std::optional<Experts> experts_;
  std::optional<blocks::Mlp> shared_experts_;
  std::optional<blocks::Linear> shared_gate_;                  // [1, H]
  std::optional<blocks::Linear> into_latent_, out_of_latent_;  // [latent, H], [H, latent]
};

}  // namespace automoe::moe
