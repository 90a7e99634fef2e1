#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace automoe::train {
namespace {

double half_cosine(double progress) { return 0.5 * (1.0 + std::cos(std::numbers::pi * progress)); }

double share(int64_t part, int64_t whole) {
  return double(part) / double(std::max<int64_t>(1, whole));
}

}  // namespace

const std::vector<std::string>& schedule_names() {
  static const std::vector<std::string> names{"constant", "linear", "cosine",
                                              "warmup_stable_decay"};
  return names;
}

double Schedule::factor(int64_t finished_steps) const {
  const auto above_floor = [&](double x) { return x * (1.0 - min_lr_ratio) + min_lr_ratio; };
  const bool stable = type == "warmup_stable_decay";
  if (finished_steps < warmup_steps) {
    const double warmup = share(finished_steps, warmup_steps);
    return stable ? above_floor(warmup) : warmup;
  }
  if (type == "constant") return 1.0;
  if (stable) {
    const int64_t decayed = finished_steps - (total_steps - decay_steps);
    if (decayed < 0) return 1.0;
    return decayed < decay_steps ? above_floor(half_cosine(share(decayed, decay_steps)))
                                 : min_lr_ratio;
  }
  const double progress = share(finished_steps - warmup_steps, total_steps - warmup_steps);
  if (type == "linear") return above_floor(std::max(0.0, 1.0 - progress));
  return above_floor(half_cosine(progress));
}

}  // namespace automoe::train
