// Turns prepared data into the micro-batches of each optimizer step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <future>
#include <optional>
#include <vector>

#include "train/packing.h"
#include "train/prepared_data.h"

namespace automoe::train {

/// Rows joined into one sequence of T tokens, on the CPU. Positions restart at each document; a
/// label is the token itself where it is trained, -100 elsewhere and at each document's first
/// token, which nothing before it may predict.
struct MicroBatch {
  at::Tensor input_ids, position_ids, labels;  // [1, T] int64
  std::vector<int64_t> document_ends;          // ascending, the last one is T
  int64_t labelled_tokens = 0;
};

struct StepBatch {
  std::vector<MicroBatch> micro_batches;
  int64_t tokens = 0, labelled_tokens = 0;
};

MicroBatch make_micro_batch(const PreparedData& data, const Rows& rows,
                            std::span<const int64_t> row_indices);

struct LoaderOptions {
  int64_t rows_per_micro_batch = 1;
  int64_t micro_batches_per_step = 1;
  uint64_t seed = 0;
};

/// What a step sees is a pure function of (data, rows, options, step). Every row comes exactly once
/// an epoch; an epoch's last step may hold fewer rows. While a step is used the next one is built
/// on another thread. `data` and `rows` must outlive the loader.
class Loader {
 public:
  Loader(const PreparedData& data, const Rows& rows, const LoaderOptions& options);

  int64_t steps_per_epoch() const;
  StepBatch load(int64_t step);

 private:
  std::vector<int64_t> rows_of(int64_t step);
  StepBatch build(const std::vector<int64_t>& step_rows) const;

  const PreparedData& data_;
  const Rows& rows_;
  LoaderOptions options_;
  int64_t epoch_ = -1;  // whose order is in order_
  std::vector<int64_t> order_;
  int64_t next_step_ = -1;  // what next_ holds
  std::future<StepBatch> next_;
};

}  // namespace automoe::train
