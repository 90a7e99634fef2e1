// How a global batch is split where memory is short.
#pragma once

#include <cstdint>
#include <functional>

namespace automoe::train {

struct BatchSplit {
  int64_t per_device_train_batch_size = 1;
  int64_t gradient_accumulation_steps = 1;
};

/// The largest micro-batch that divides `global_batch` rows and fits: the product of the two stays
/// global_batch, so the steps are the same whatever fits. probe(rows) runs one forward and backward
/// pass of that many rows, the longest among them, and returns whether memory sufficed; an
/// out-of-memory error that it throws counts as no. Throws RuntimeError if a single row does not
/// fit.
BatchSplit find_micro_batch(int64_t global_batch, const std::function<bool(int64_t)>& probe);

}  // namespace automoe::train
