// Full fine-tuning of a CausalLM on prepared data: packing, accumulation, AdamW, schedules, exact
// resume.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "automoe/model.h"

namespace automoe {

/// Names are those of Transformers' TrainingArguments where it has the thing.
struct TrainConfig {
  std::filesystem::path train_data;  // prepared folder (docs/data.md)
  std::filesystem::path eval_data;   // empty: no evaluation
  std::filesystem::path output_dir;  // checkpoints and metrics.jsonl

  int64_t max_length = 1024;  // tokens in a packed row
  bool packing = true;
  int64_t per_device_train_batch_size = 1;  // rows in a micro-batch
  int64_t gradient_accumulation_steps = 1;
  double num_train_epochs = 1;
  int64_t max_steps = -1;  // > 0 wins over epochs

  /// adamw: fp32 master weights and moments, 16 bytes a bf16 parameter with its gradient.
  /// adamw_bf16: bf16 moments, no master, stochastic rounding, 8 bytes; bf16 models only.
  std::string optim = "adamw";
  double learning_rate = 1e-5;
  double weight_decay = 0.0;  // matrices only
  double adam_beta1 = 0.9, adam_beta2 = 0.999, adam_epsilon = 1e-8;
  double max_grad_norm = 1.0;                // <= 0: no clipping
  std::string lr_scheduler_type = "cosine";  // constant | linear | cosine | warmup_stable_decay
  int64_t warmup_steps = 0;
  double warmup_ratio = 0.0;  // of all steps, used if warmup_steps is 0
  double decay_ratio = 0.1;   // warmup_stable_decay: share of the steps that decay
  double min_lr_ratio = 0.0;  // floor, as a share of learning_rate

  std::optional<bool> router_aux_loss;  // unset: as the model config's output_router_logits says
  std::vector<std::string> freeze;      // substrings of parameter names that are not trained
  std::string recompute = "norms";
  uint64_t seed = 42;

  int64_t logging_steps = 1;
  int64_t eval_steps = 0;  // 0: only when asked
  int64_t save_steps = 0;  // 0: only at the end
  int64_t save_total_limit = 3;
  std::string resume_from_checkpoint = "auto";  // auto | never | a checkpoint folder

  /// Throws ValueError on an unknown key, naming the nearest known one, and on impossible values.
  static TrainConfig from_json(const std::string& json);
  std::string to_json() const;
};

struct StepMetrics {
  int64_t step = 0;  // finished optimizer steps
  double epoch = 0;
  double loss = 0;       // task loss a labelled token, over the whole step
  double aux_loss = 0;   // 0 where it is off
  double grad_norm = 0;  // before clipping
  double learning_rate = 0;
  int64_t tokens = 0, labelled_tokens = 0;  // in this step
  double seconds = 0;
  double memory_gib = 0;                          // peak: resident on CPU, allocator on CUDA
  std::vector<std::vector<int64_t>> expert_load;  // [MoE layers][E] tokens
};

struct EvalMetrics {
  double loss = 0, perplexity = 0;
  int64_t labelled_tokens = 0;
};

/// Drives training step by step. Everything that a later step depends on is in the checkpoint, so a
/// run resumed from one gives the same bits as an unbroken run.
class Trainer {
 public:
  /// Resumes as config.resume_from_checkpoint says; resumed_step() tells from where. `model` must
  /// outlive the trainer.
  Trainer(CausalLM& model, TrainConfig config);
  ~Trainer();

  int64_t total_steps() const;
  int64_t finished_steps() const;
  int64_t resumed_step() const;  // 0: a fresh start
  bool done() const { return finished_steps() >= total_steps(); }

  /// One optimizer step. Appends to metrics.jsonl, evaluates and saves when due.
  StepMetrics step();
  EvalMetrics evaluate() const;

  /// Writes output_dir/checkpoint-<step> atomically and keeps the newest save_total_limit.
  std::filesystem::path save_checkpoint();

  /// step() until done, calling `on_step` after each. On SIGTERM or SIGINT the current step is
  /// finished and a checkpoint written. Returns whether training is complete.
  bool run(const std::function<void(const StepMetrics&)>& on_step = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace automoe
