#include "moe/balance_loss.h"

#include "automoe/error.h"
#include "moe/router.h"

namespace automoe::moe {

at::Tensor load_balancing_loss(const std::vector<at::Tensor>& router_logits, int64_t top_k) {
  AUTOMOE_CHECK(!router_logits.empty(), "[load_balancing_loss] the model has no router");
  const int64_t num_experts = router_logits[0].size(1);
  at::Tensor counts, probability_sum;
  int64_t rows = 0;
  for (const at::Tensor& logits : router_logits) {
    const at::Tensor probabilities = at::softmax(logits, /*dim=*/-1);
    const at::Tensor chosen = std::get<1>(probabilities.detach().topk(top_k, /*dim=*/-1));
    const at::Tensor layer_counts = count_tokens(chosen, num_experts);
    const at::Tensor layer_sum = probabilities.to(at::kFloat).sum(0);
    counts = counts.defined() ? counts + layer_counts : layer_counts;
    probability_sum = probability_sum.defined() ? probability_sum + layer_sum : layer_sum;
    rows += logits.size(0);
  }
  const double scale = static_cast<double>(rows);
  return (counts.to(at::kFloat) / scale * (probability_sum / scale)).sum() * num_experts;
}

}  // namespace automoe::moe
