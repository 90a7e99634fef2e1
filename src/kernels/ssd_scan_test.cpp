#include "kernels/ssd_scan.h"

#include "automoe/error.h"
#include "kernels/testing.h"

namespace automoe::kernels {
namespace {

using at::Tensor;
using Ends = std::vector<int64_t>;

// The recurrence, token by token. in: x, dt, b, c, a_log, d, dt_bias.
TensorFunction formula(const Ends& ends, double min_step = 0) {
  return [=](const Tensors& in) {
    const auto wide = [&](size_t i) { return widened(in[i]); };
    const Tensor x = wide(0);
    const int64_t share = x.size(1) / in[2].size(1);
    const Tensor b = wide(2).repeat_interleave(share, 1), c = wide(3).repeat_interleave(share, 1);
    const Tensor step = at::softplus(wide(1) + wide(6)).clamp_min(min_step);
    const Tensor decay = (step * -wide(4).exp()).exp();
    Tensors rows;
    Tensor state;
    for (int64_t t = 0; t < x.size(0); ++t) {
      if (t == 0 || std::ranges::find(ends, t) != ends.end())
        state = at::zeros({x.size(1), x.size(2), b.size(2)}, x.options());
      const Tensor added = (step[t].unsqueeze(1) * x[t]).unsqueeze(2) * b[t].unsqueeze(1);
      state = decay[t].view({-1, 1, 1}) * state + added;
      rows.push_back(at::matmul(state, c[t].unsqueeze(2)).squeeze(2) + wide(5).unsqueeze(1) * x[t]);
    }
    return at::stack(rows).to(in[0].scalar_type());
  };
}

TensorFunction actual(const Ends& ends, int64_t chunk_size, double min_step = 0) {
  return [=](const Tensors& in) {
    return ssd_scan(in[0], in[1], in[2], in[3], in[4], in[5], in[6],
                    Documents::from_ends(ends, in[0].device()),
                    {.chunk_size = chunk_size, .min_step = min_step});
  };
}

struct Shape {
  int64_t tokens, heads, head_dim, groups, state;
};

Tensors inputs(const Shape& s, at::Device device, at::ScalarType dtype = at::kFloat) {
  const auto random = [&](at::IntArrayRef shape, uint64_t seed) {
    return random_tensor(shape, device, seed, dtype);
  };
  return {random({s.tokens, s.heads, s.head_dim}, 1),
          random({s.tokens, s.heads}, 2),
          random({s.tokens, s.groups, s.state}, 3),
          random({s.tokens, s.groups, s.state}, 4),
          random({s.heads}, 5),
          random({s.heads}, 6),
          random({s.heads}, 7)};
}

std::string describe(at::Device device, const Shape& s, int64_t chunk_size) {
  return text(device, " T ", s.tokens, " heads ", s.heads, " P ", s.head_dim, " G ", s.groups,
              " N ", s.state, " Q ", chunk_size);
}

TEST(SsdScan, ValueAndGradientsMatchTheRecurrence) {
  for (const at::Device device : test_devices())
    for (const Shape& s : {Shape{1, 1, 1, 1, 1}, Shape{7, 2, 3, 1, 5}, Shape{16, 6, 4, 3, 8},
                           Shape{37, 4, 5, 4, 3}, Shape{65, 8, 16, 2, 8}})
      for (const int64_t chunk_size : {1, 8, 128})
        for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
          if (dtype == at::kDouble && !device.is_cpu()) continue;
          SCOPED_TRACE(describe(device, s, chunk_size) + text(" ", dtype));
          expect_same_value_and_grads(actual({s.tokens}, chunk_size), formula({s.tokens}),
                                      inputs(s, device, dtype));
        }
}

TEST(SsdScan, EveryDocumentStartsFromAZeroState) {
  for (const at::Device device : test_devices())
    for (const Ends& ends : {Ends{1, 2, 8, 9, 30}, Ends{8, 16, 24, 32}, Ends{5, 41}, Ends{40, 41}})
      for (const int64_t chunk_size : {3, 8, 64}) {
        const Shape s{ends.back(), 4, 3, 2, 5};
        SCOPED_TRACE(describe(device, s, chunk_size));
        expect_same_value_and_grads(actual(ends, chunk_size), formula(ends), inputs(s, device));
      }
}

TEST(SsdScan, ADocumentGivesWhatItGivesAlone) {
  for (const at::Device device : test_devices()) {
    const Tensors in = inputs({21, 4, 3, 2, 5}, device);
    const Tensor together = actual({6, 7, 21}, 4)(in);
    for (const auto& [begin, end] : {std::pair{0, 6}, std::pair{6, 7}, std::pair{7, 21}}) {
      Tensors part = in;
      for (size_t i = 0; i < 4; ++i) part[i] = in[i].slice(0, begin, end);
      EXPECT_LT(relative_error(together.slice(0, begin, end), actual({end - begin}, 4)(part)),
                tolerance(at::kFloat));
    }
  }
}

TEST(SsdScan, ChunkSizeChangesNothing) {
  for (const at::Device device : test_devices()) {
    const Tensors in = inputs({50, 4, 3, 2, 5}, device);
    const Tensors expected = value_and_grads(actual({13, 50}, 50), in);
    for (const int64_t chunk_size : {1, 2, 7, 25, 49, 51, 256}) {
      const Tensors found = value_and_grads(actual({13, 50}, chunk_size), in);
      for (size_t i = 0; i < found.size(); ++i)
        EXPECT_LT(relative_error(found[i], expected[i]), tolerance(at::kFloat))
            << chunk_size << " " << describe_result(i);
    }
  }
}

TEST(SsdScan, LongStreamsAreWorkedOnInParts) {
  const Shape s{2500, 4, 2, 2, 3};  // on CPU 8 chunks of 128 at a time
  for (const at::Device device : test_devices())
    expect_same_value_and_grads(actual({700, 2500}, 128), formula({700, 2500}), inputs(s, device));
}

TEST(SsdScan, StepsStayAboveTheirMinimumAndHaveNoGradientBelow) {
  for (const at::Device device : test_devices()) {
    const Tensors in = inputs({19, 4, 3, 2, 5}, device);
    const double min_step = 0.7;  // softplus(0) = 0.69
    expect_same_value_and_grads(actual({19}, 8, min_step), formula({19}, min_step), in);
    const Tensor d_dt = value_and_grads(actual({19}, 8, min_step), in)[2];
    const Tensor low = at::softplus(in[1] + in[6]).lt(min_step);
    EXPECT_TRUE(low.any().item<bool>());
    EXPECT_TRUE(d_dt.masked_select(low).eq(0).all().item<bool>());
    EXPECT_TRUE(d_dt.masked_select(low.logical_not()).ne(0).any().item<bool>());
  }
}

TEST(SsdScan, StrongDecaysLoseNoDigits) {
  for (const at::Device device : test_devices()) {
    Tensors in = inputs({130, 4, 3, 2, 5}, device);
    in[4].fill_(std::log(64.0));  // A = -64: the logarithms sum up to thousands
    expect_same_value_and_grads(actual({130}, 128), formula({130}), in);
  }
}

TEST(SsdScan, HalfPrecisionIsAsExactAsTheRecurrence) {
  for (const at::Device device : test_devices())
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf})
      expect_as_exact_as_formula(actual({50, 200}, 64), formula({50, 200}),
                                 inputs({200, 4, 8, 2, 16}, device, dtype));
}

TEST(SsdScan, TakesSlicesOfAFusedProjection) {
  const Shape s{22, 4, 3, 2, 5};
  const auto on_slices = [](TensorFunction f) {
    return [f](const Tensors& in) {
      Tensors parts = in[0].split_with_sizes({12, 10, 10, 4}, 1);
      return f({parts[0].unflatten(1, {4, 3}), parts[3], parts[1].unflatten(1, {2, 5}),
                parts[2].unflatten(1, {2, 5}), in[1], in[2], in[3]})
          .transpose(0, 1);
    };
  };
  for (const at::Device device : test_devices()) {
    const Tensors in = inputs(s, device);
    expect_same_value_and_grads(on_slices(actual({22}, 8)), on_slices(formula({22})),
                                {random_tensor({22, 36}, device, 1), in[4], in[5], in[6]});
  }
}

TEST(SsdScan, MemoryGrowsWithTheTokensAndNotWithTheirStates) {
  const Shape s{4096, 4, 16, 1, 64};
  const Tensors in = inputs(s, at::kCPU);
  LargestAllocation largest;
  value_and_grads(actual({s.tokens}, 128), in);
  const size_t states = s.tokens * s.heads * s.head_dim * s.state * sizeof(float);
  EXPECT_LT(largest.bytes(), states / 8);
}

TEST(SsdScan, AcceptsNoTokens) {
  for (const at::Device device : test_devices()) {
    const Tensors all = value_and_grads(actual({}, 8), inputs({0, 4, 3, 2, 5}, device));
    EXPECT_EQ(all[0].sizes(), (Ends{0, 4, 3}));
    for (size_t i = 5; i < all.size(); ++i) EXPECT_EQ(all[i].abs().max().item<float>(), 0.0f);
  }
}

TEST(SsdScan, RefusesShapesThatDoNotFit) {
  const Tensors good = inputs({6, 4, 3, 2, 5}, at::kCPU);
  for (size_t i = 0; i < good.size(); ++i) {
    Tensors in = good;
    in[i] = good[i].slice(0, 1);
    EXPECT_THROW(actual({6}, 8)(in), ValueError) << i;
  }
  EXPECT_THROW(actual({5}, 8)(good), ValueError);
  EXPECT_THROW(actual({6}, 0)(good), ValueError);
  Tensors in = good;
  for (const size_t i : {2, 3}) in[i] = at::zeros({6, 3, 5});
  EXPECT_THROW(actual({6}, 8)(in), ValueError);
}

}  // namespace
}  // namespace automoe::kernels
