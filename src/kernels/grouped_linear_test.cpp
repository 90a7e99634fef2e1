#include "kernels/grouped_linear.h"

#include "kernels/testing.h"

namespace automoe::kernels {
namespace {

using at::Tensor;

RowGroups groups_of(const std::vector<int64_t>& ends, const Tensor& x, const Tensor& weight) {
  const Tensor on_device =
      at::tensor(std::vector<int32_t>(ends.begin(), ends.end()), at::kInt).to(x.device());
  return {on_device, grouped_on_device(x, weight) ? std::vector<int64_t>() : ends};
}

struct Case {
  std::vector<int64_t> ends;
  int64_t rows, in, out;
};

// Empty groups first, in the middle and last; one group with all rows; rows that belong to no
// group.
const std::vector<Case> kCases{
    {{0, 3, 3, 10}, 10, 16, 24}, {{0, 0, 0, 1}, 1, 8, 8},           {{7, 7, 7}, 7, 32, 8},
    {{2, 5, 9}, 13, 40, 48},     {{33, 64, 130, 131}, 131, 72, 56}, {{4, 9}, 9, 33, 7}};

TEST(GroupedLinear, MultipliesEachGroupByItsOwnWeight) {
  for (const at::Device device : test_devices())
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
      for (const Case& c : kCases) {
        SCOPED_TRACE(::testing::Message()
                     << device << " " << dtype << " ends " << at::IntArrayRef(c.ends));
        const int64_t count = c.ends.size(), used = c.ends.back();
        const Tensor x = random_tensor({c.rows, c.in}, device, 1, dtype);
        const Tensor weight = random_tensor({count, c.out, c.in}, device, 2, dtype);
        const RowGroups groups = groups_of(c.ends, x, weight);
        const Tensor dy = random_tensor({c.rows, c.out}, device, 3, dtype);
        const Tensor y = grouped_linear(x, weight, groups),
                     dx = grouped_linear_dx(dy, weight, groups);
        const Tensor dweight = grouped_linear_dweight(dy, x, groups);
        EXPECT_EQ(y.sizes(), (std::vector<int64_t>{c.rows, c.out}));
        EXPECT_EQ(dx.sizes(), (std::vector<int64_t>{c.rows, c.in}));
        EXPECT_EQ(dweight.sizes(), weight.sizes());
        for (int64_t g = 0, begin = 0; g < count; begin = c.ends[g++]) {
          const auto rows = [&](const Tensor& t) { return widened(t.slice(0, begin, c.ends[g])); };
          const Tensor w = widened(weight[g]);
          EXPECT_LT(relative_error(dweight[g], rows(dy).t().mm(rows(x))), tolerance(dtype));
          if (begin == c.ends[g]) continue;
          EXPECT_LT(relative_error(rows(y), rows(x).mm(w.t())), tolerance(dtype));
          EXPECT_LT(relative_error(rows(dx), rows(dy).mm(w)), tolerance(dtype));
        }
        EXPECT_LE(used, c.rows);
      }
}

TEST(GroupedLinear, AcceptsNoRows) {
  for (const at::Device device : test_devices()) {
    const Tensor weight = random_tensor({2, 8, 16}, device, 1),
                 none = at::zeros({0, 16}, weight.options());
    const RowGroups groups = groups_of({0, 0}, none, weight);
    EXPECT_EQ(grouped_linear(none, weight, groups).sizes(), (std::vector<int64_t>{0, 8}));
    const Tensor dweight =
        grouped_linear_dweight(at::zeros({0, 8}, weight.options()), none, groups);
    EXPECT_EQ(dweight.abs().max().item<float>(), 0.0f);
  }
}

}  // namespace
}  // namespace automoe::kernels
