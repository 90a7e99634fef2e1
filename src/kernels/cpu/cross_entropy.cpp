#include "kernels/cpu/loops.h"
#include "kernels/cross_entropy_args.h"

namespace automoe::kernels {
namespace {

using namespace cpu;

[[gnu::always_inline]] inline float largest(const float* x, int64_t n) {
  constexpr int64_t kLanes = 16;
  float lanes[kLanes];
  std::fill(lanes, lanes + kLanes, x[0]);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] = std::max(lanes[lane], x[i + lane]);
  for (; i < n; ++i) lanes[0] = std::max(lanes[0], x[i]);
  return *std::max_element(lanes, lanes + kLanes);
}

AUTOMOE_VECTOR_CLONES
void loss_rows(const CrossEntropyArgs& args, int64_t begin, int64_t end) {
  const int64_t vocab = args.vocab;
  for (int64_t row = begin; row < end; ++row) {
    float* logits = static_cast<float*>(args.logits) + row * vocab;
    const int64_t target = args.targets[row];
    if (target < 0) {
      args.losses[row] = 0;
      if (args.want_gradient) std::fill(logits, logits + vocab, 0.0f);
      continue;
    }
    const float top = largest(logits, vocab), own = logits[target];
    if (!args.want_gradient) {
      const float sum =
          sum_over<float>(vocab, [&](int64_t i) { return exponential(logits[i] - top); });
      args.losses[row] = std::log(sum) + top - own;
      continue;
    }
    const float sum =
        sum_over<float>(vocab, [&](int64_t i) { return logits[i] = exponential(logits[i] - top); });
    args.losses[row] = std::log(sum) + top - own;
    const float scale = 1.0f / sum;
    for (int64_t i = 0; i < vocab; ++i) logits[i] *= scale;
    logits[target] -= 1.0f;
  }
}

}  // namespace

void cross_entropy_cpu(const CrossEntropyArgs& args) {
  parallel_rows(args.rows, args.vocab,
                [&](int64_t begin, int64_t end) { loss_rows(args, begin, end); });
}

}  // namespace automoe::kernels
