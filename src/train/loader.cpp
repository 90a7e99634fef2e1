#include "train/loader.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace automoe::train {
namespace {

constexpr int64_t kIgnored = -100;

}  // namespace

MicroBatch make_micro_batch(const PreparedData& data, const Rows& rows,
                            std::span<const int64_t> row_indices) {
  MicroBatch batch;
  int64_t total = 0;
  for (const int64_t row : row_indices)
    for (const int64_t document : rows.row(row)) {
      total += data.length(document);
      batch.document_ends.push_back(total);
    }
  batch.input_ids = at::empty({1, total}, at::kLong);
  batch.position_ids = at::empty({1, total}, at::kLong);
  batch.labels = at::empty({1, total}, at::kLong);
  auto* ids = batch.input_ids.mutable_data_ptr<int64_t>();
  auto* positions = batch.position_ids.mutable_data_ptr<int64_t>();
  auto* labels = batch.labels.mutable_data_ptr<int64_t>();
  for (const int64_t row : row_indices)
    for (const int64_t index : rows.row(row)) {
      const Document document = data.document(index);
      for (size_t i = 0; i < document.tokens.size(); ++i) {
        const bool target = i > 0 && document.trained[i] != 0;
        *ids++ = document.tokens[i];
        *positions++ = int64_t(i);
        *labels++ = target ? int64_t{document.tokens[i]} : kIgnored;
        batch.labelled_tokens += target;
      }
    }
  return batch;
}

Loader::Loader(const PreparedData& data, const Rows& rows, const LoaderOptions& options)
    : data_(data), rows_(rows), options_(options) {}

int64_t Loader::steps_per_epoch() const {
  const int64_t rows_per_step = options_.rows_per_micro_batch * options_.micro_batches_per_step;
  return (rows_.count() + rows_per_step - 1) / rows_per_step;
}

std::vector<int64_t> Loader::rows_of(int64_t step) {
  const int64_t epoch = step / steps_per_epoch();
  if (epoch != epoch_) {
    order_ = epoch_order(rows_.count(), options_.seed, epoch);
    epoch_ = epoch;
  }
  const int64_t rows_per_step = options_.rows_per_micro_batch * options_.micro_batches_per_step;
  const int64_t begin = step % steps_per_epoch() * rows_per_step;
  const int64_t end = std::min(begin + rows_per_step, rows_.count());
  return {order_.begin() + begin, order_.begin() + end};
}

StepBatch Loader::build(const std::vector<int64_t>& step_rows) const {
  StepBatch batch;
  const std::span<const int64_t> all(step_rows);
  for (size_t begin = 0; begin < all.size(); begin += size_t(options_.rows_per_micro_batch)) {
    const size_t count = std::min(size_t(options_.rows_per_micro_batch), all.size() - begin);
    batch.micro_batches.push_back(make_micro_batch(data_, rows_, all.subspan(begin, count)));
    batch.tokens += batch.micro_batches.back().input_ids.numel();
    batch.labelled_tokens += batch.micro_batches.back().labelled_tokens;
  }
  return batch;
}

StepBatch Loader::load(int64_t step) {
  StepBatch batch = next_.valid() && next_step_ == step ? next_.get() : build(rows_of(step));
  next_step_ = step + 1;
  next_ = std::async(std::launch::async,
                     [this, step_rows = rows_of(step + 1)] { return build(step_rows); });
  return batch;
}

}  // namespace automoe::train
