// Learning-rate schedules, with the values of Transformers' schedulers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace automoe::train {

/// "constant", "linear", "cosine", "warmup_stable_decay".
const std::vector<std::string>& schedule_names();

struct Schedule {
  std::string type = "constant";
  int64_t total_steps = 1;
  int64_t warmup_steps = 0;
  int64_t decay_steps = 0;  // warmup_stable_decay: the last steps, which follow a cosine down
  double min_lr_ratio =
      0.0;  // where the decay ends; warmup_stable_decay also starts its warm-up there

  /// What the learning rate is multiplied by in the step after `finished_steps` ones.
  double factor(int64_t finished_steps) const;
};

}  // namespace automoe::train
