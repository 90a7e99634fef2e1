// Forward and backward over the micro-batches of one optimizer step, and evaluation.
#pragma once

#include "automoe/model.h"
#include "automoe/trainer.h"
#include "train/loader.h"

namespace automoe::train {

struct StepOptions {
  Recompute recompute = Recompute::kNorms;
  bool router_aux_loss = false;
  double router_aux_loss_coef = 0.001;
};

/// Scalars on the model's device, so that reading them together costs one synchronisation.
struct StepLosses {
  at::Tensor
      loss;  // fp64: the step's summed token losses over its labelled tokens, balance loss apart
  at::Tensor aux_loss;     // fp64: before its coefficient; 0 where it is off
  at::Tensor expert_load;  // [MoE layers, E] int64; undefined without experts
};

/// Adds the gradients of the step's loss to the parameters' .grad: each micro-batch's token losses
/// over the labelled tokens of the whole step, and the balance loss of each micro-batch weighted by
/// its share of the tokens. How the step is cut into micro-batches does not matter. The step must
/// have labelled tokens.
StepLosses accumulate_gradients(const CausalLM& model, const StepBatch& step,
                                const StepOptions& options);

/// Mean loss a labelled token over all rows, in order, without gradients.
EvalMetrics evaluate_rows(const CausalLM& model, const PreparedData& data, const Rows& rows,
                          int64_t rows_per_batch);

}  // namespace automoe::train
