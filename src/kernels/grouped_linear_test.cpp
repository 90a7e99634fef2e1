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

// The same [G, N, K], in memory as [G, K, N].
Tensor transposed(const Tensor& weight) {
  return weight.transpose(1, 2).contiguous().transpose(1, 2);
}

void expect_products(const Case& c, const Tensor& weight, at::Device device, at::ScalarType dtype) {
  const int64_t count = weight.size(0);
  const Tensor x = random_tensor({c.rows, c.in}, device, 1, dtype);
  const Tensor dy = random_tensor({c.rows, c.out}, device, 3, dtype);
  const Tensor bias = random_tensor({count, c.out}, device, 4, dtype);
  const RowGroups groups = groups_of(c.ends, x, weight);
  const Tensor y = grouped_linear(x, weight, {}, groups),
               biased = grouped_linear(x, weight, bias, groups),
               dx = grouped_linear_dx(dy, weight, groups),
               dweight = grouped_linear_dweight(dy, x, weight, groups),
               dbias = grouped_linear_dbias(dy, groups);
  EXPECT_EQ(y.sizes(), (std::vector<int64_t>{c.rows, c.out}));
  EXPECT_EQ(dx.sizes(), (std::vector<int64_t>{c.rows, c.in}));
  EXPECT_EQ(dweight.sizes(), weight.sizes());
  EXPECT_EQ(dweight.strides(), weight.strides());
  EXPECT_EQ(dbias.sizes(), bias.sizes());
  for (int64_t g = 0, begin = 0; g < count; begin = c.ends[g++]) {
    const auto rows = [&](const Tensor& t) { return widened(t.slice(0, begin, c.ends[g])); };
    const Tensor w = widened(weight[g]);
    EXPECT_LT(relative_error(dweight[g], rows(dy).t().mm(rows(x))), tolerance(dtype));
    EXPECT_LT(relative_error(dbias[g], rows(dy).sum(0)), tolerance(dtype));
    if (begin == c.ends[g]) continue;
    EXPECT_LT(relative_error(rows(y), rows(x).mm(w.t())), tolerance(dtype));
    EXPECT_LT(relative_error(rows(biased), rows(x).mm(w.t()) + widened(bias[g])), tolerance(dtype));
    EXPECT_LT(relative_error(rows(dx), rows(dy).mm(w)), tolerance(dtype));
  }
}

TEST(GroupedLinear, MultipliesEachGroupByItsOwnWeightInBothLayouts) {
  for (const at::Device device : test_devices())
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
      for (const Case& c : kCases) {
        SCOPED_TRACE(::testing::Message()
                     << device << " " << dtype << " ends " << at::IntArrayRef(c.ends));
        const int64_t count = c.ends.size();
        const Tensor weight = random_tensor({count, c.out, c.in}, device, 2, dtype);
        expect_products(c, weight, device, dtype);
        expect_products(c, transposed(weight), device, dtype);
      }
}

TEST(GroupedLinear, CopiesTheWeightInNeitherLayout) {
  const Case c{{3, 5}, 5, 160, 200};
  const Tensor weight = random_tensor({2, c.out, c.in}, at::kCPU, 1);
  const Tensor x = random_tensor({5, c.in}, at::kCPU, 2),
               dy = random_tensor({5, c.out}, at::kCPU, 3);
  for (const Tensor& w : {weight, transposed(weight)}) {
    const RowGroups groups = groups_of(c.ends, x, w);
    const LargestAllocation allocation;
    grouped_linear(x, w, {}, groups);
    grouped_linear_dx(dy, w, groups);
    EXPECT_LT(allocation.bytes(), w.nbytes() / 2);
  }
}

TEST(GroupedLinear, AcceptsNoRows) {
  for (const at::Device device : test_devices()) {
    const Tensor weight = random_tensor({2, 8, 16}, device, 1),
                 none = at::zeros({0, 16}, weight.options());
    const RowGroups groups = groups_of({0, 0}, none, weight);
    EXPECT_EQ(grouped_linear(none, weight, {}, groups).sizes(), (std::vector<int64_t>{0, 8}));
    const Tensor dweight =
        grouped_linear_dweight(at::zeros({0, 8}, weight.options()), none, weight, groups);
    EXPECT_EQ(dweight.abs().max().item<float>(), 0.0f);
  }
}

}  // namespace
}  // namespace automoe::kernels
