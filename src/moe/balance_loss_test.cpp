#include "moe/balance_loss.h"

#include <gtest/gtest.h>

#include "kernels/testing.h"
#include "moe/router.h"

namespace automoe::moe {
namespace {

using kernels::random_tensor;

// The definition, token by token.
double by_definition(const std::vector<Tensor>& layers, int64_t k) {
  const int64_t experts = layers[0].size(1);
  std::vector<double> sent(experts), probability(experts);
  double rows = 0;
  for (const Tensor& logits : layers)
    for (int64_t t = 0; t < logits.size(0); ++t, ++rows) {
      const Tensor p = at::softmax(logits[t].to(at::kDouble), 0);
      const Tensor chosen = std::get<1>(p.topk(k));
      for (int64_t e = 0; e < experts; ++e) probability[e] += p[e].item<double>();
      for (int64_t j = 0; j < k; ++j) sent[chosen[j].item<int64_t>()] += 1;
    }
  double loss = 0;
  for (int64_t e = 0; e < experts; ++e) loss += sent[e] / rows * probability[e] / rows;
  return experts * loss;
}

TEST(BalanceLoss, IsOneMeanOverAllLayers) {
  const std::vector<Tensor> layers{random_tensor({7, 5}, at::kCPU, 1),
                                   random_tensor({7, 5}, at::kCPU, 2)};
  for (const int64_t k : {1, 2, 5})
    EXPECT_NEAR(load_balancing_loss(layers, k).item<double>(), by_definition(layers, k), 1e-5);
}

TEST(BalanceLoss, PushesThePopularExpertDown) {
  Tensor logits = at::zeros({9, 4});
  logits.select(1, 2).fill_(1.0);
  logits.requires_grad_(true);
  load_balancing_loss({logits}, 1).backward();
  EXPECT_GT(logits.grad().select(1, 2).min().item<double>(), 0);
  EXPECT_LT(logits.grad().select(1, 0).max().item<double>(), 0);
}

}  // namespace
}  // namespace automoe::moe
