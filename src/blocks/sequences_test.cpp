#include "blocks/sequences.h"

#include <gtest/gtest.h>

#include "automoe/error.h"

namespace automoe::blocks {
namespace {

Tensor ids(std::vector<int64_t> values, int64_t rows) {
  return at::tensor(values).view({rows, -1});
}
std::vector<int64_t> list(const Tensor& x) {
  const Tensor flat = x.contiguous();
  return {flat.data_ptr<int64_t>(), flat.data_ptr<int64_t>() + flat.numel()};
}
using Ids = std::vector<int64_t>;

TEST(Sequences, PaddingOnEitherSideLeavesTheSameStream) {
  const Tensor left = ids({0, 0, 5, 6, 7, 8, 9, 10}, 2),
               left_mask = ids({0, 0, 1, 1, 1, 1, 1, 1}, 2);
  const Tensor right = ids({5, 6, 0, 0, 7, 8, 9, 10}, 2),
               right_mask = ids({1, 1, 0, 0, 1, 1, 1, 1}, 2);
  const auto a = Sequences::from({.input_ids = left, .attention_mask = left_mask});
  const auto b = Sequences::from({.input_ids = right, .attention_mask = right_mask});
  EXPECT_EQ(list(a.ids), (Ids{5, 6, 7, 8, 9, 10}));
  EXPECT_EQ(list(b.ids), list(a.ids));
  EXPECT_EQ(a.documents.ends, (Ids{2, 6}));
  EXPECT_EQ(list(a.positions), (Ids{2, 3, 0, 1, 2, 3}));
  EXPECT_EQ(list(b.positions), (Ids{0, 1, 0, 1, 2, 3}));
}

TEST(Sequences, AllRealTokensNeedNoIndex) {
  const auto s = Sequences::from(
      {.input_ids = ids({1, 2, 3, 4}, 2), .attention_mask = at::ones({2, 2}, at::kLong)});
  EXPECT_FALSE(s.token_index.defined());
  EXPECT_TRUE(s.documents.equal);
}

TEST(Sequences, PositionsThatRestartBeginADocumentOnlyWithoutAMask) {
  const Tensor row = ids({1, 2, 3, 4, 5}, 1), positions = ids({0, 1, 0, 1, 2}, 1);
  EXPECT_EQ(Sequences::from({.input_ids = row, .position_ids = positions}).documents.ends,
            (Ids{2, 5}));
  const auto masked = Sequences::from(
      {.input_ids = row, .attention_mask = at::ones({1, 5}, at::kLong), .position_ids = positions});
  EXPECT_EQ(masked.documents.ends, (Ids{5}));
  // A row's end ends a document even where the next row's positions happen to go on.
  const auto rows =
      Sequences::from({.input_ids = ids({1, 2, 3, 4}, 2), .position_ids = ids({0, 1, 2, 3}, 2)});
  EXPECT_EQ(rows.documents.ends, (Ids{2, 4}));
}

TEST(Sequences, LabelsShiftWithinTheirRow) {
  const Tensor x = ids({1, 2, 3, 4, 5, 6}, 2);
  const auto s = Sequences::from({.input_ids = x, .labels = x});
  EXPECT_EQ(list(s.targets), (Ids{2, 3, -100, 5, 6, -100}));
}

TEST(Sequences, PadPutsTokensBackAndZerosElsewhere) {
  const auto s =
      Sequences::from({.input_ids = ids({0, 5, 6, 7}, 2), .attention_mask = ids({0, 1, 1, 1}, 2)});
  const Tensor out = s.pad(at::tensor({1.0, 2.0, 3.0}).unsqueeze(1));
  EXPECT_TRUE(at::equal(out.flatten(), at::tensor({0.0, 1.0, 2.0, 3.0})));
}

TEST(Sequences, ARowWithoutARealTokenIsNoDocument) {
  const auto s =
      Sequences::from({.input_ids = ids({1, 2, 3, 4}, 2), .attention_mask = ids({0, 0, 1, 1}, 2)});
  EXPECT_EQ(s.documents.ends, (Ids{2}));
}

TEST(Sequences, ShapesThatDoNotFitAreNamed) {
  const Tensor x = ids({1, 2, 3, 4}, 2);
  EXPECT_THROW(Sequences::from({.input_ids = x, .attention_mask = at::ones({2, 3})}), ValueError);
  EXPECT_THROW(Sequences::from({.input_ids = x, .labels = at::ones({1, 2}, at::kLong)}),
               ValueError);
  EXPECT_THROW(Sequences::from({.input_ids = x, .attention_mask = at::zeros({2, 2})}), ValueError);
  EXPECT_THROW(Sequences::from({.input_ids = x.to(at::kFloat)}), ValueError);
  EXPECT_THROW(Sequences::from({.input_ids = x, .document_ends = {3}}), ValueError);
}

}  // namespace
}  // namespace automoe::blocks
