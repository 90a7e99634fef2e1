#include "kernels/routing.h"

#include "automoe/error.h"
#include "kernels/testing.h"

namespace automoe::kernels {
namespace {

using at::Tensor;

// T, K, E; indices are drawn from [0, E + extra), so that some are skipped.
struct Case {
  int64_t tokens, slots, experts, extra;
};

const std::vector<Case> kCases{{1, 1, 1, 0},     {1, 8, 3, 0},     {13, 2, 8, 0},
                               {200, 1, 300, 5}, {700, 8, 17, 1},  {3000, 8, 128, 0},
                               {5000, 4, 5, 60}, {900, 3, 1030, 2}};

Tensor indices_of(const Case& c, at::Device device) {
  return random_integers({c.tokens, c.slots}, c.experts + c.extra, device, 1);
}

TEST(Routing, SortsPairsByExpertAndKeepsTheirOrder) {
  for (const at::Device device : test_devices())
    for (const Case& c : kCases) {
      SCOPED_TRACE(::testing::Message()
                   << device << " T " << c.tokens << " K " << c.slots << " E " << c.experts);
      const Tensor indices = indices_of(c, device);
      const Routing routing = sort_pairs(indices, c.experts);
      const Tensor bucket = indices.flatten().cpu().clamp_max(c.experts);
      const auto [sorted, order] = bucket.sort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
      EXPECT_TRUE(routing.pair.cpu().equal(order.to(at::kInt)));
      EXPECT_TRUE(routing.position.cpu().flatten().index_select(0, order).equal(
          at::arange(order.size(0), at::kInt)));
      const Tensor counts = at::bincount(bucket, {}, c.experts + 1).slice(0, 0, c.experts);
      EXPECT_TRUE(routing.ends.cpu().equal(counts.cumsum(0).to(at::kInt)));
    }
}

TEST(Routing, NegativeIndicesAreSkippedToo) {
  for (const at::Device device : test_devices()) {
    const Tensor indices = at::tensor({2, -1, 0, -7, 3, 2}, at::kLong).view({3, 2}).to(device);
    const Routing routing = sort_pairs(indices, 3);
    EXPECT_TRUE(routing.ends.cpu().equal(at::tensor({1, 1, 3}, at::kInt)));
    EXPECT_TRUE(routing.pair.cpu().equal(at::tensor({2, 0, 5, 1, 3, 4}, at::kInt)));
  }
}

TEST(Routing, GathersRowsAndCombinesThemWithTheirScores) {
  for (const at::Device device : test_devices())
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf})
      for (const Case& c : kCases)
        for (const int64_t width : {1, 24, 263}) {
          SCOPED_TRACE(::testing::Message() << device << " " << dtype << " T " << c.tokens << " K "
                                            << c.slots << " E " << c.experts << " N " << width);
          const Tensor indices = indices_of(c, device),
                       x = random_tensor({c.tokens, width}, device, 2, dtype);
          const Routing routing = sort_pairs(indices, c.experts);
          const Tensor rows = gather_rows(x, routing);
          const int64_t used = routing.ends[-1].item<int>();
          const Tensor token =
              at::floor_divide(routing.pair.slice(0, 0, used).to(at::kLong), c.slots);
          EXPECT_TRUE(rows.slice(0, 0, used).equal(x.index_select(0, token)));
          const Tensor score = random_tensor({c.tokens, c.slots}, device, 3);
          const Tensor taken = indices.lt(c.experts);
          for (const Tensor& s : {score, Tensor()}) {
            const Tensor sum =
                ((s.defined() ? s : at::ones_like(score)) * taken).to(at::kDouble).sum(1, true);
            EXPECT_LT(relative_error(combine_rows(rows, routing, s), x.to(at::kDouble) * sum),
                      dtype == at::kFloat ? 1e-5 : 1e-2);
          }
        }
}

TEST(Routing, SkippedRowsAreNeverRead) {
  for (const at::Device device : test_devices()) {
    const Tensor indices = at::tensor({0, 9, 9, 9, 1, 9}, at::kLong).view({3, 2}).to(device);
    const Routing routing = sort_pairs(indices, 2);
    Tensor rows = at::ones({6, 5}, at::device(device));
    rows.slice(0, 2).fill_(NAN);
    const Tensor expected = at::tensor({1.0f, 0.0f, 1.0f}).unsqueeze(1).expand({3, 5});
    EXPECT_TRUE(combine_rows(rows, routing, {}).cpu().equal(expected));
  }
}

TEST(Routing, AcceptsNoTokens) {
  for (const at::Device device : test_devices()) {
    const Routing routing = sort_pairs(at::empty({0, 2}, at::device(device).dtype(at::kLong)), 4);
    EXPECT_TRUE(routing.ends.cpu().equal(at::zeros({4}, at::kInt)));
    EXPECT_EQ(gather_rows(at::empty({0, 8}, at::device(device)), routing).sizes(),
              (std::vector<int64_t>{0, 8}));
    EXPECT_EQ(combine_rows(at::empty({0, 8}, at::device(device)), routing, {}).sizes(),
              (std::vector<int64_t>{0, 8}));
  }
}

TEST(Routing, RefusesIndicesOfAnotherType) {
  EXPECT_THROW(sort_pairs(at::zeros({3, 2}, at::kInt), 4), ValueError);
}

}  // namespace
}  // namespace automoe::kernels
