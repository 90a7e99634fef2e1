#include "kernels/grad_norm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "automoe/error.h"
#include "kernels/vector_clones.h"

namespace automoe::kernels {
namespace {

using at::Tensor;

constexpr int64_t kChunk = 16384;  // summed by one thread: fixes the order of additions
constexpr int64_t kLanes = 16;     // independent sums, so that the loop becomes vector code

AUTOMOE_VECTOR_CLONES
double sum_of_squares(const float* x, int64_t count) {
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane)
      lanes[lane] += double(x[i + lane]) * double(x[i + lane]);
  for (; i < count; ++i) lanes[i % kLanes] += double(x[i]) * double(x[i]);
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

double squared_norm_cpu(const Tensor& grad) {
  const Tensor flat = grad.contiguous().view(-1);
  std::vector<double> sums(size_t((flat.numel() + kChunk - 1) / kChunk));
  at::parallel_for(0, int64_t(sums.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Tensor chunk =
          flat.slice(0, i * kChunk, std::min((i + 1) * kChunk, flat.numel())).to(at::kFloat);
      sums[i] = sum_of_squares(chunk.const_data_ptr<float>(), chunk.numel());
    }
  });
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

}  // namespace

Tensor grad_norm(at::TensorList grads) {
  const at::NoGradGuard no_grad;
  std::vector<Tensor> defined;
  for (const Tensor& grad : grads)
    if (grad.defined()) defined.push_back(grad);
  const auto elsewhere = std::find_if(defined.begin(), defined.end(), [&](const Tensor& grad) {
    return grad.device() != defined[0].device();
  });
  AUTOMOE_CHECK_VALUE(elsewhere == defined.end(),
                      "[grad_norm] all gradients must be on one device, got ", defined[0].device(),
                      " and ", elsewhere->device());
  if (!defined.empty() && !defined[0].is_cpu())
    return at::stack(at::_foreach_norm(defined, 2, at::kFloat)).norm();
  double total = 0;
  for (const Tensor& grad : defined) total += squared_norm_cpu(grad);
  return at::scalar_tensor(std::sqrt(total), at::kDouble);
}

Tensor clip_coefficient(const Tensor& norm, double max_norm) {
  AUTOMOE_CHECK_VALUE(max_norm > 0, "[grad_norm] max_norm must be above 0, got ", max_norm);
  return (max_norm / (norm + 1e-6)).clamp_max(1.0);
}

}  // namespace automoe::kernels
