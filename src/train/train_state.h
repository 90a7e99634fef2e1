// What a checkpoint holds besides the model: progress, the settings that shape the curve, moments.
#pragma once

#include <filesystem>

#include "automoe/model.h"
#include "core/json.h"
#include "train/optimizer.h"

namespace automoe::train {

struct Progress {
  int64_t step = 0;  // finished optimizer steps
  double epoch = 0;
  int64_t updates = 0;  // steps that changed the weights: those with labelled tokens
  int64_t tokens = 0, labelled_tokens = 0;  // seen so far
};

/// Writes a whole checkpoint folder: a Hugging Face folder, optimizer/ and trainer_state.json. It
/// appears complete or not at all. Throws RuntimeError, telling the bytes needed and free, if it
/// cannot; older checkpoints stay as they are. `settings` must be equal on resume; `config` is kept
/// for the reader.
void write_checkpoint(const std::filesystem::path& folder, const CausalLM& model,
                      const Optimizer& optimizer, const Progress& progress, const Json& settings,
                      const Json& config);

/// Fills model and optimizer from a complete checkpoint folder. Throws ValueError naming every
/// setting that differs, before anything is changed.
Progress read_checkpoint(const std::filesystem::path& folder, CausalLM& model, Optimizer& optimizer,
                         const Json& settings);

}  // namespace automoe::train
