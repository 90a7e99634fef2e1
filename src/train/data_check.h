// Faults of the data that a training run would otherwise hide.
#pragma once

#include <cstdint>
#include <string>

#include "train/prepared_data.h"

namespace automoe::train {

struct TargetSummary {
  int64_t targets = 0;  // trained tokens that some token precedes
  int64_t documents_without_targets = 0;
  bool one_token_only = false;  // every target is the same token
};

TargetSummary summarize_targets(const PreparedData& data);

/// Throws ValueError if the data cannot train a model of this vocabulary: a token beyond it, no
/// target, or targets that are all the same token. Returns a line to show about documents without a
/// target, or "".
std::string check_training_data(const PreparedData& data, int64_t vocab_size);

/// Throws ValueError for a token beyond the vocabulary and if there is no target.
void check_evaluation_data(const PreparedData& data, int64_t vocab_size);

/// Throws ValueError if the loss of the first step is exactly 0: nothing is learnt from such data.
/// Returns a line to show if it lies far below ln(vocab_size), or "".
std::string check_first_loss(double loss, int64_t vocab_size);

}  // namespace automoe::train
