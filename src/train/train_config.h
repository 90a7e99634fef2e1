// The fields of TrainConfig as one table: reading, writing and checking walk it.
#pragma once

#include "automoe/trainer.h"

namespace automoe::train {

/// Calls visit(key, member) for every field, in the order of trainer.h.
template <typename Config, typename Visitor>
void each_field(Config& config, Visitor&& visit) {
  visit("train_data", config.train_data);
  visit("eval_data", config.eval_data);
  visit("output_dir", config.output_dir);
  visit("max_length", config.max_length);
  visit("packing", config.packing);
  visit("per_device_train_batch_size", config.per_device_train_batch_size);
  visit("gradient_accumulation_steps", config.gradient_accumulation_steps);
  visit("num_train_epochs", config.num_train_epochs);
  visit("max_steps", config.max_steps);
  visit("optim", config.optim);
  visit("learning_rate", config.learning_rate);
  visit("weight_decay", config.weight_decay);
  visit("adam_beta1", config.adam_beta1);
  visit("adam_beta2", config.adam_beta2);
  visit("adam_epsilon", config.adam_epsilon);
  visit("max_grad_norm", config.max_grad_norm);
  visit("lr_scheduler_type", config.lr_scheduler_type);
  visit("warmup_steps", config.warmup_steps);
  visit("warmup_ratio", config.warmup_ratio);
  visit("decay_ratio", config.decay_ratio);
  visit("min_lr_ratio", config.min_lr_ratio);
  visit("router_aux_loss", config.router_aux_loss);
  visit("freeze", config.freeze);
  visit("recompute", config.recompute);
  visit("seed", config.seed);
  visit("logging_steps", config.logging_steps);
  visit("eval_steps", config.eval_steps);
  visit("save_steps", config.save_steps);
  visit("save_total_limit", config.save_total_limit);
  visit("resume_from_checkpoint", config.resume_from_checkpoint);
}

/// Throws ValueError naming key, value and what is allowed if a value is impossible.
void check_config(const TrainConfig& config);

}  // namespace automoe::train
