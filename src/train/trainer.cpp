#include "automoe/trainer.h"

#include <ATen/ATen.h>

#include <chrono>
#include <cmath>
#include <csignal>

#include "core/log.h"
#include "kernels/grad_norm.h"
#include "train/checkpoints.h"
#include "train/data_check.h"
#include "train/memory.h"
#include "train/metrics.h"
#include "train/run_state.h"
#include "train/signals.h"
#include "train/train_config.h"

namespace automoe {
namespace fs = std::filesystem;
namespace {

using namespace train;

using Clock = std::chrono::steady_clock;

TrainConfig checked(TrainConfig config) {
  check_config(config);
  AUTOMOE_CHECK_VALUE(!config.train_data.empty(),
                      "[train] train_data is missing; name a prepared folder");
  AUTOMOE_CHECK_VALUE(!config.output_dir.empty(),
                      "[train] output_dir is missing; name a folder for checkpoints");
  return config;
}

struct StepNumbers {
  double loss, aux_loss, grad_norm;
};

// The only synchronisation of a step.
StepNumbers read_numbers(const StepLosses& losses, const at::Tensor& norm) {
  const at::Tensor all = at::stack({losses.loss, losses.aux_loss, norm.to(at::kDouble)}).cpu();
  const double* numbers = all.const_data_ptr<double>();
  return {numbers[0], numbers[1], numbers[2]};
}

// Tensors that require gradients now do so again in the end, whatever was frozen in between.
class GradientsRestored {
 public:
  explicit GradientsRestored(const CausalLM& model) {
    for (const NamedTensor& parameter : model.parameters())
      if (parameter.tensor.requires_grad()) tensors_.push_back(parameter.tensor);
  }
  ~GradientsRestored() {
    for (const at::Tensor& tensor : tensors_) tensor.set_requires_grad(true);
  }
  GradientsRestored(const GradientsRestored&) = delete;
  GradientsRestored& operator=(const GradientsRestored&) = delete;

 private:
  std::vector<at::Tensor> tensors_;
};

std::vector<std::vector<int64_t>> rows_of(const at::Tensor& expert_load) {
  std::vector<std::vector<int64_t>> rows;
  if (!expert_load.defined()) return rows;
  const at::Tensor counts = expert_load.to(at::kCPU, at::kLong).contiguous();  // [layers, E]
  const auto* at = counts.const_data_ptr<int64_t>();
  for (int64_t layer = 0; layer < counts.size(0); ++layer, at += counts.size(1))
    rows.emplace_back(at, at + counts.size(1));
  return rows;
}

}  // namespace

struct Trainer::State {
  State(CausalLM& trained_model, TrainConfig given);

  void resume();
  void announce() const;
  StepNumbers update(const StepBatch& batch, double learning_rate, at::Tensor& expert_load);
  fs::path metrics_file() const { return config.output_dir / "metrics.jsonl"; }
  bool due(int64_t every) const { return every > 0 && progress.step % every == 0; }

  CausalLM& model;
  const TrainConfig config;
  const int64_t vocab_size;
  StepOptions step_options;
  const PackedData train_set;
  const std::optional<PackedData> eval_set;
  Loader loader;
  const Schedule schedule;
  const GradientsRestored gradients_restored;
  const std::vector<NamedTensor> trained;
  Optimizer optimizer;
  const Json settings;
  Progress progress;
  int64_t resumed_step = 0;
  int64_t saved_step = -1;
};

Trainer::State::State(CausalLM& trained_model, TrainConfig given)
    : model(trained_model),
      config(checked(std::move(given))),
      vocab_size(
          require<int64_t>(parse_json(model.config_json(), "the model's config"), "vocab_size")),
      step_options{
          .recompute = recompute_from(config.recompute),
          .router_aux_loss = model.has_balance_loss() &&
                             config.router_aux_loss.value_or(model.aux_loss_in_config()),
          .router_aux_loss_coef = value_or(parse_json(model.config_json(), "the model's config"),
                                           "router_aux_loss_coef", 0.001)},
      train_set(config.train_data, config),
      eval_set(config.eval_data.empty() ? std::nullopt
                                        : std::make_optional<PackedData>(config.eval_data, config)),
      loader(train_set.data, train_set.rows,
             {.rows_per_micro_batch = config.per_device_train_batch_size,
              .micro_batches_per_step = config.gradient_accumulation_steps,
              .seed = config.seed}),
      schedule(schedule_of(config, loader.steps_per_epoch())),
      gradients_restored(model),
      trained(freeze_and_list_trained(model, config.freeze)),
      optimizer(trained, {.beta1 = config.adam_beta1,
                          .beta2 = config.adam_beta2,
                          .epsilon = config.adam_epsilon,
                          .weight_decay = config.weight_decay,
                          .stochastic_rounding = config.optim == "adamw_bf16",
                          .seed = config.seed}),
      settings(
          curve_settings(config, schedule, train_set.data, model, step_options.router_aux_loss)) {
  AUTOMOE_CHECK_VALUE(
      model.has_balance_loss() || !config.router_aux_loss.value_or(false),
      "[train] router_aux_loss is true, but the model has no balance loss; leave it unset");
  AUTOMOE_CHECK_VALUE(config.optim != "adamw_bf16" ||
                          model.parameters().front().tensor.scalar_type() == at::kBFloat16,
                      "[train] optim = adamw_bf16 is for a bfloat16 model, this one is ",
                      model.parameters().front().tensor.scalar_type(),
                      "; load it as bfloat16, or use optim = adamw");
  const std::string note = check_training_data(train_set.data, vocab_size);
  if (!note.empty()) warn_once(note);
  if (eval_set) check_evaluation_data(eval_set->data, vocab_size);
  fs::create_directories(config.output_dir);
  announce();
  resume();
}

void Trainer::State::announce() const {
  const auto count = [](const std::vector<NamedTensor>& parameters) {
    int64_t total = 0;
    for (const NamedTensor& parameter : parameters) total += parameter.tensor.numel();
    return total;
  };
  std::string balance = "no balance loss";
  if (model.has_balance_loss())
    balance = step_options.router_aux_loss
                  ? text("balance loss on, coefficient ", step_options.router_aux_loss_coef)
                  : std::string("balance loss off");
  warn_once(text("training ", count(trained), " of ", count(model.parameters()), " parameters",
                 model.adapter() ? text(" (LoRA, rank ", model.adapter()->r, ")") : "", " on ",
                 train_set.data.num_documents(), " documents in ", train_set.rows.count(),
                 " rows, ", std::lround(1000 * train_set.fill) / 10.0, " % full, boundaries on; ",
                 schedule.total_steps, " steps; ", balance));
}

void Trainer::State::resume() {
  const fs::path from = checkpoint_to_resume(config);
  if (!from.empty()) {
    progress = read_checkpoint(from, model, optimizer, settings);
    resumed_step = progress.step;
    if (fs::equivalent(from.parent_path(), config.output_dir)) saved_step = progress.step;
    warn_once(text("resumed from ", from.string(),
                   ": weights, moments, schedule and data order at step ", progress.step, " of ",
                   schedule.total_steps, ", learning rate ",
                   config.learning_rate * schedule.factor(progress.step)));
  }
  keep_lines_until(metrics_file(), progress.step);
}

// Forward, backward, clipping and the optimizer. Throws before the weights change if a number is
// not finite.
StepNumbers Trainer::State::update(const StepBatch& batch, double learning_rate,
                                   at::Tensor& expert_load) {
  const StepLosses losses = accumulate_gradients(model, batch, step_options);
  const at::Tensor norm = kernels::grad_norm(optimizer.grads());
  const StepNumbers numbers = read_numbers(losses, norm);
  AUTOMOE_CHECK(std::isfinite(numbers.loss) && std::isfinite(numbers.grad_norm), "[train] step ",
                progress.step + 1, ": the loss is ", numbers.loss, " and the gradient norm ",
                numbers.grad_norm,
                "; nothing was updated. Lower learning_rate, or go on from an earlier checkpoint");
  if (progress.step == 0)
    if (const std::string note = check_first_loss(numbers.loss, vocab_size); !note.empty())
      warn_once(note);
  optimizer.step(learning_rate, config.max_grad_norm > 0
                                    ? kernels::clip_coefficient(norm, config.max_grad_norm)
                                    : at::Tensor());
  expert_load = losses.expert_load;
  return numbers;
}

Trainer::Trainer(CausalLM& model, TrainConfig config)
    : state_(std::make_unique<State>(model, std::move(config))) {}
Trainer::~Trainer() = default;

int64_t Trainer::total_steps() const { return state_->schedule.total_steps; }
int64_t Trainer::finished_steps() const { return state_->progress.step; }
int64_t Trainer::resumed_step() const { return state_->resumed_step; }

StepMetrics Trainer::step() {
  State& state = *state_;
  AUTOMOE_CHECK_VALUE(!done(), "[train] all ", total_steps(), " steps are finished");
  const auto begin = Clock::now();
  const StepBatch batch = state.loader.load(state.progress.step);
  StepMetrics metrics;
  metrics.learning_rate = state.config.learning_rate * state.schedule.factor(state.progress.step);
  metrics.tokens = batch.tokens;
  metrics.labelled_tokens = batch.labelled_tokens;
  if (batch.labelled_tokens > 0) {
    at::Tensor expert_load;
    try {
      const StepNumbers numbers = state.update(batch, metrics.learning_rate, expert_load);
      metrics.loss = numbers.loss;
      metrics.aux_loss = numbers.aux_loss;
      metrics.grad_norm = numbers.grad_norm;
    } catch (...) {
      state.optimizer.clear_grads();
      throw;
    }
    state.optimizer.clear_grads();
    metrics.expert_load = rows_of(expert_load);
  }
  Progress& progress = state.progress;
  ++progress.step;
  progress.epoch = double(progress.step) / double(state.loader.steps_per_epoch());
  progress.updates = state.optimizer.updates();
  progress.tokens += batch.tokens;
  progress.labelled_tokens += batch.labelled_tokens;
  metrics.step = progress.step;
  metrics.epoch = progress.epoch;
  metrics.memory_gib = peak_memory_gib(state.trained.front().tensor.device());
  metrics.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  if (state.due(state.config.logging_steps) || done())
    append_line(state.metrics_file(), step_line(metrics));
  if (state.due(state.config.eval_steps))
    append_line(state.metrics_file(), evaluation_line(progress.step, evaluate()));
  if (state.due(state.config.save_steps)) save_checkpoint();
  return metrics;
}

EvalMetrics Trainer::evaluate() const {
  const State& state = *state_;
  AUTOMOE_CHECK_VALUE(state.eval_set, "[eval] there is no eval_data; name a prepared folder");
  return evaluate_rows(state.model, state.eval_set->data, state.eval_set->rows,
                       state.config.per_device_train_batch_size);
}

fs::path Trainer::save_checkpoint() {
  State& state = *state_;
  const fs::path folder = checkpoint_path(state.config.output_dir, state.progress.step);
  if (state.saved_step == state.progress.step && missing_in(folder).empty()) return folder;
  write_checkpoint(folder, state.model, state.optimizer, state.progress, state.settings,
                   parse_json(state.config.to_json(), "the training config"));
  state.saved_step = state.progress.step;
  keep_newest(state.config.output_dir, state.config.save_total_limit);
  return folder;
}

bool Trainer::run(const std::function<void(const StepMetrics&)>& on_step) {
  const StopSignals signals;
  while (!done() && signals.received() == 0) {
    const StepMetrics metrics = step();
    if (on_step) on_step(metrics);
  }
  const fs::path saved = save_checkpoint();
  if (done()) return true;
  warn_once(text(signals.received() == SIGTERM ? "SIGTERM" : "SIGINT", ": stopped after step ",
                 finished_steps(), " of ", total_steps(),
                 "; go on with resume_from_checkpoint = auto or ", saved.string()));
  return false;
}

}  // namespace automoe
