#include "train/batch_split.h"

#include <c10/util/Exception.h>

#include "automoe/error.h"

namespace automoe::train {
namespace {

bool fits(int64_t rows, const std::function<bool(int64_t)>& probe) {
  try {
    return probe(rows);
  } catch (const c10::OutOfMemoryError&) {
    return false;
  }
}

}  // namespace

BatchSplit find_micro_batch(int64_t global_batch, const std::function<bool(int64_t)>& probe) {
  AUTOMOE_CHECK_VALUE(global_batch >= 1, "[train] the global batch must be at least 1 row, got ",
                      global_batch);
  for (int64_t rows = global_batch; rows >= 1; --rows)
    if (global_batch % rows == 0 && fits(rows, probe)) return {rows, global_batch / rows};
  throw RuntimeError(
      "[train] a micro-batch of 1 row does not fit into memory; shorten max_length, set recompute "
      "to "
      "layer, or use a larger device. The global batch is never changed");
}

}  // namespace automoe::train
