// AdamW over named parameters, its state kept by name.
#pragma once

#include <vector>

#include "automoe/checkpoint.h"

namespace automoe::train {

struct OptimizerOptions {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  double weight_decay = 0.0;  // of matrices; 1-D parameters (norms, biases) take none
  bool stochastic_rounding =
      false;          // bf16 parameters: no master, bf16 moments, 6 bytes instead of 14
  uint64_t seed = 0;  // of stochastic rounding
};

class Optimizer {
 public:
  /// Parameters are float32, bfloat16 or float16 and are updated in place.
  Optimizer(const std::vector<NamedTensor>& parameters, const OptimizerOptions& options);

  /// One update from the parameters' gradients, each multiplied by `grad_scale` (a scalar tensor;
  /// undefined: 1). A parameter without a gradient stays as it is. No host synchronisation on CUDA.
  void step(double learning_rate, const at::Tensor& grad_scale);

  /// The parameters' gradients; undefined where there is none.
  std::vector<at::Tensor> grads() const;

  /// Frees the gradients: their memory serves the next forward pass.
  void clear_grads();

  int64_t updates() const { return updates_; }
  void set_updates(int64_t updates) { updates_ = updates; }

  /// The state to save, or to load into: "master.<name>" (half-precision parameters that have one),
  /// "exp_avg.<name>", "exp_avg_sq.<name>".
  std::vector<NamedTensor> state() const;

 private:
  struct Slot {
    NamedTensor parameter;
    at::Tensor master, exp_avg, exp_avg_sq;  // master: the parameter itself if that is fp32,
                                             // undefined with stochastic rounding
  };

  std::vector<Slot> slots_;
  OptimizerOptions options_;
  int64_t updates_ = 0;
};

}  // namespace automoe::train
