#include "train/data_check.h"

#include "train/test_support.h"

namespace automoe::train {
namespace {

TEST(DataCheck, TargetsAreTrainedTokensWithATokenBeforeThem) {
  const Scratch scratch;
  const PreparedData data(
      write_prepared(scratch / "data", {make_document({1, 2, 3}), make_document({4}),
                                        make_document({5, 6, 7, 8}, 3), make_document({9, 9}, 2)}));
  const TargetSummary summary = summarize_targets(data);
  EXPECT_EQ(summary.targets, 3);
  EXPECT_EQ(summary.documents_without_targets, 2);
  EXPECT_FALSE(summary.one_token_only);
}

TEST(DataCheck, ASingleTargetIsNotTakenForTargetsThatAreAllAlike) {
  const Scratch scratch;
  const PreparedData data(write_prepared(scratch / "data", {make_document({1, 2})}));
  EXPECT_EQ(check_training_data(data, 64), "");
}

TEST(DataCheck, AFirstLossOfZeroStopsAndAVeryLowOneIsReported) {
  EXPECT_SAYS(
      message_of([] { check_first_loss(0.0, 64); }),
      "[data check] the loss of the first step is exactly 0 where a guess has ln(64) = 4.15888");
  EXPECT_SAYS(check_first_loss(0.2, 64), "far below ln(64)");
  EXPECT_EQ(check_first_loss(0.21, 64), "");
  EXPECT_EQ(check_first_loss(4.1, 64), "");
}

}  // namespace
}  // namespace automoe::train
