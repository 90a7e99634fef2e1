#include "train/run_state.h"

#include <algorithm>
#include <cmath>

#include "core/log.h"
#include "core/text.h"
#include "train/checkpoints.h"

namespace automoe::train {
namespace fs = std::filesystem;
namespace {

PreparedData open(const fs::path& folder, int64_t max_length) {
  PreparedData data(folder);
  require_fit(data.lengths(), max_length, data.name());
  return data;
}

std::string hex(uint64_t number) {
  std::ostringstream out;
  out << std::hex << number;
  return out.str();
}

void require_nothing_later(const TrainConfig& config, const fs::path& chosen) {
  const std::vector<CheckpointFolder> all = list_checkpoints(config.output_dir);
  if (all.empty()) return;
  const int64_t step =
      chosen.empty() ? 0 : require<int64_t>(read_json(chosen / kStateFile), "global_step");
  AUTOMOE_CHECK_VALUE(
      all.back().step <= step, "[resume] ", config.output_dir.string(), " holds checkpoint-",
      all.back().step, ", later than step ", step,
      " where this run starts; set "
      "resume_from_checkpoint = auto to go on from it, or choose another output_dir, or remove it");
}

}  // namespace

PackedData::PackedData(const fs::path& folder, const TrainConfig& config)
    : data(open(folder, config.max_length)),
      rows(config.packing ? pack_documents(data.lengths(), config.max_length)
                          : one_document_per_row(data.num_documents())),
      fill(fill_ratio(rows, data.lengths(), config.max_length)) {}

std::vector<NamedTensor> freeze_and_list_trained(CausalLM& model,
                                                 const std::vector<std::string>& freeze) {
  std::vector<std::string> names;
  for (const NamedTensor& parameter : model.parameters()) names.push_back(parameter.name);
  for (const std::string& pattern : freeze) {
    const bool found = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return name.find(pattern) != std::string::npos;
    });
    AUTOMOE_CHECK_VALUE(found && !pattern.empty(), "[train] freeze: '", pattern,
                        "' is part of no parameter name.", did_you_mean(pattern, names),
                        " The first of ", names.size(), " names: ", names.front());
  }
  std::vector<NamedTensor> trained;
  for (const NamedTensor& parameter : model.parameters()) {
    const bool frozen = std::any_of(freeze.begin(), freeze.end(), [&](const std::string& pattern) {
      return parameter.name.find(pattern) != std::string::npos;
    });
    if (frozen) parameter.tensor.set_requires_grad(false);
    if (parameter.tensor.requires_grad()) trained.push_back(parameter);
  }
  AUTOMOE_CHECK_VALUE(!trained.empty(), "[train] freeze = ", join(freeze),
                      " leaves no parameter to train");
  return trained;
}

Schedule schedule_of(const TrainConfig& config, int64_t steps_per_epoch) {
  Schedule schedule{.type = config.lr_scheduler_type, .min_lr_ratio = config.min_lr_ratio};
  schedule.total_steps =
      config.max_steps > 0 ? config.max_steps
                           : int64_t(std::ceil(config.num_train_epochs * double(steps_per_epoch)));
  schedule.warmup_steps =
      config.warmup_steps > 0
          ? config.warmup_steps
          : int64_t(std::ceil(config.warmup_ratio * double(schedule.total_steps)));
  schedule.decay_steps = int64_t(std::ceil(config.decay_ratio * double(schedule.total_steps)));
  return schedule;
}

Json curve_settings(const TrainConfig& config, const Schedule& schedule, const PreparedData& data,
                    const CausalLM& model, bool router_aux_loss) {
  Json settings{
      {"train_data", text(data.num_documents(), " documents, ", data.num_tokens(), " tokens, hash ",
                          hex(data.fingerprint()))},
      {"max_length", config.max_length},
      {"packing", config.packing},
      {"rows_per_step", config.per_device_train_batch_size * config.gradient_accumulation_steps},
      {"optim", config.optim},
      {"learning_rate", config.learning_rate},
      {"weight_decay", config.weight_decay},
      {"adam_beta1", config.adam_beta1},
      {"adam_beta2", config.adam_beta2},
      {"adam_epsilon", config.adam_epsilon},
      {"max_grad_norm", config.max_grad_norm},
      {"lr_scheduler_type", config.lr_scheduler_type},
      {"warmup_steps", schedule.warmup_steps},
      {"router_aux_loss", router_aux_loss},
      {"freeze", config.freeze},
      {"seed", config.seed},
      {"dtype", at::toString(model.parameters().front().tensor.scalar_type())}};
  if (model.adapter()) settings["lora"] = parse_json(model.adapter()->to_json(""), "the adapter");
  if (schedule.type != "constant") {  // a constant rate may go on for more steps
    settings["total_steps"] = schedule.total_steps;
    settings["min_lr_ratio"] = schedule.min_lr_ratio;
  }
  if (schedule.type == "warmup_stable_decay") settings["decay_steps"] = schedule.decay_steps;
  return settings;
}

fs::path checkpoint_to_resume(const TrainConfig& config) {
  remove_leftovers(config.output_dir);
  fs::path chosen;
  if (config.resume_from_checkpoint == "auto") {
    std::vector<CheckpointFolder> all = list_checkpoints(config.output_dir);
    for (; chosen.empty() && !all.empty(); all.pop_back()) {
      const std::string missing = missing_in(all.back().path);
      if (missing.empty())
        chosen = all.back().path;
      else
        warn_once(text("skipped ", all.back().path.string(), ", which is incomplete: ", missing));
    }
    return chosen;
  }
  if (config.resume_from_checkpoint != "never") {
    chosen = config.resume_from_checkpoint;
    const std::string missing = missing_in(chosen);
    AUTOMOE_CHECK_VALUE(missing.empty(), "[resume] ", chosen.string(),
                        " is no complete checkpoint: ", missing,
                        "; resume_from_checkpoint must be auto, never or a checkpoint folder");
  }
  require_nothing_later(config, chosen);
  return chosen;
}

}  // namespace automoe::train
