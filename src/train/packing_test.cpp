#include "train/packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "automoe/error.h"
#include "core/mix.h"
#include "train/test_support.h"

namespace automoe::train {
namespace {

std::vector<int64_t> skewed_lengths(int64_t count, int64_t max_length, uint64_t seed) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < count; ++i) {  // many short ones, some long: like chats
    const uint64_t a = random_below(seed, uint64_t(2 * i), uint64_t(max_length));
    const uint64_t b = random_below(seed, uint64_t(2 * i + 1), uint64_t(max_length));
    lengths.push_back(int64_t(1 + a * b / uint64_t(max_length)));
  }
  return lengths;
}

TEST(Packing, EveryDocumentHasOnePlaceAndNoRowOverflows) {
  for (const int64_t max_length : {1, 7, 129}) {
    const auto lengths = skewed_lengths(501, max_length, 3);
    const Rows rows = pack_documents(lengths, max_length);
    for (int64_t row = 0; row < rows.count(); ++row) {
      int64_t used = 0;
      for (const int64_t document : rows.row(row)) used += lengths[document];
      EXPECT_LE(used, max_length);
      EXPECT_GT(used, 0);
    }
    std::vector<int64_t> all = rows.documents, expected(lengths.size());
    std::sort(all.begin(), all.end());
    std::iota(expected.begin(), expected.end(), int64_t{0});
    EXPECT_EQ(all, expected);
  }
}

TEST(Packing, TypicalLengthsFillTheRowsTo97Percent) {
  const auto lengths = skewed_lengths(4001, 1024, 5);
  EXPECT_GE(fill_ratio(pack_documents(lengths, 1024), lengths, 1024), 0.97);
}

TEST(Packing, OneDocumentPerRowKeepsThemApart) {
  const Rows rows = one_document_per_row(3);
  ASSERT_EQ(rows.count(), 3);
  EXPECT_EQ(rows.row(1).size(), 1u);
  EXPECT_EQ(rows.row(1)[0], 1);
}

TEST(Packing, ADocumentTooLongIsNamedWithTheRemedy) {
  const std::vector<int64_t> lengths{5, 30, 21};
  const std::string said = message_of([&] { require_fit(lengths, 20, "chats"); });
  EXPECT_SAYS(
      said,
      "chats: document 1 has 30 tokens, more than max_length = 20 (2 of 3 documents are too long)");
  EXPECT_SAYS(said, "set max_length to 30");
  require_fit(lengths, 30, "chats");
}

TEST(EpochOrder, IsAPermutationThatSeedAndEpochChange) {
  const std::vector<int64_t> order = epoch_order(1001, 42, 0);
  std::vector<int64_t> sorted = order, expected(1001);
  std::sort(sorted.begin(), sorted.end());
  std::iota(expected.begin(), expected.end(), int64_t{0});
  EXPECT_EQ(sorted, expected);
  EXPECT_NE(order, expected);
  EXPECT_EQ(order, epoch_order(1001, 42, 0));
  EXPECT_NE(order, epoch_order(1001, 42, 1));
  EXPECT_NE(order, epoch_order(1001, 43, 0));
}

// Fixed for good: another order would break the resume of runs that exist.
TEST(EpochOrder, IsTheSameOnEveryPlatform) {
  EXPECT_EQ(epoch_order(7, 42, 3), (std::vector<int64_t>{4, 6, 5, 2, 3, 1, 0}));
}

TEST(EpochOrder, EveryRowIsEquallyLikelyToComeFirst) {
  std::vector<int64_t> first(5);
  for (int64_t epoch = 0; epoch < 5000; ++epoch) ++first[epoch_order(5, 1, epoch)[0]];
  for (const int64_t count : first) EXPECT_NEAR(double(count), 1000.0, 150.0);
}

}  // namespace
}  // namespace automoe::train
