// What a Trainer holds, and how it comes into being.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "automoe/trainer.h"
#include "core/json.h"
#include "train/loader.h"
#include "train/optimizer.h"
#include "train/schedule.h"
#include "train/train_state.h"
#include "train/train_step.h"

namespace automoe::train {

/// A prepared folder cut into rows.
struct PackedData {
  PreparedData data;
  Rows rows;
  double fill;  // used share of the rows' room

  /// Throws ValueError if a document is longer than a row.
  PackedData(const std::filesystem::path& folder, const TrainConfig& config);
};

/// The parameters that config.freeze leaves. The others stop requiring gradients. Throws ValueError
/// for a pattern that matches nothing and if nothing is left.
std::vector<NamedTensor> freeze_and_list_trained(CausalLM& model,
                                                 const std::vector<std::string>& freeze);

Schedule schedule_of(const TrainConfig& config, int64_t steps_per_epoch);

/// What shapes the loss curve: equal settings give equal bits.
Json curve_settings(const TrainConfig& config, const Schedule& schedule, const PreparedData& data,
                    const CausalLM& model, bool router_aux_loss);

/// The checkpoint that config.resume_from_checkpoint asks for; empty for a fresh start. Incomplete
/// folders are skipped with a message. Throws ValueError if a named folder is no complete
/// checkpoint, or if output_dir holds checkpoints of later steps than the one chosen.
std::filesystem::path checkpoint_to_resume(const TrainConfig& config);

}  // namespace automoe::train
