#include "train/batch_split.h"

#include <c10/util/Exception.h>

#include "train/test_support.h"

namespace automoe::train {
namespace {

TEST(BatchSplit, OutOfMemoryChangesTheSplitAndNeverTheGlobalBatch) {
  std::vector<int64_t> probed;
  const BatchSplit split = find_micro_batch(8, [&](int64_t rows) {
    probed.push_back(rows);
    TORCH_CHECK_WITH(OutOfMemoryError, rows <= 2, "out of memory");
    return true;
  });
  EXPECT_EQ(split.per_device_train_batch_size, 2);
  EXPECT_EQ(split.gradient_accumulation_steps, 4);
  EXPECT_EQ(probed, (std::vector<int64_t>{8, 4, 2}));
}

TEST(BatchSplit, AnOddGlobalBatchIsKeptToo) {
  const BatchSplit split = find_micro_batch(15, [](int64_t rows) { return rows <= 4; });
  EXPECT_EQ(split.per_device_train_batch_size, 3);
  EXPECT_EQ(split.gradient_accumulation_steps, 5);
}

TEST(BatchSplit, ARowThatNeverFitsStopsClearlyAtOne) {
  int64_t last = 0;
  EXPECT_SAYS(message_of<RuntimeError>([&] {
                find_micro_batch(8, [&](int64_t rows) {
                  last = rows;
                  return false;
                });
              }),
              "a micro-batch of 1 row does not fit");
  EXPECT_EQ(last, 1);
}

TEST(BatchSplit, AnyOtherErrorOfTheProbeIsNotHidden) {
  EXPECT_THROW(find_micro_batch(4, [](int64_t) -> bool { throw ValueError("broken"); }),
               ValueError);
}

}  // namespace
}  // namespace automoe::train
