#include "kernels/grouped_linear.h"

#include <ATen/ops/_grouped_mm.h>

#include "automoe/error.h"

namespace automoe::kernels {
namespace {

using at::Tensor;

// Calls f(group, begin, end) for every group; for none where `host_ends` is empty, as there are no
// rows then.
template <typename F>
void for_each_group(const RowGroups& groups, F&& f) {
  if (groups.host_ends.empty()) return;
  for (int64_t group = 0, begin = 0; group < groups.count(); ++group) {
    const int64_t end = groups.host_ends[group];
    f(group, begin, end);
    begin = end;
  }
}

}  // namespace

bool grouped_on_device(const Tensor& x, const Tensor& weight) {
  return x.is_cuda() && x.scalar_type() == at::kBFloat16 && weight.size(1) % 8 == 0 &&
         weight.size(2) % 8 == 0;
}

Tensor grouped_linear(const Tensor& x, const Tensor& weight, const RowGroups& groups) {
  if (groups.host_ends.empty() && x.size(0) > 0)
    return at::_grouped_mm(x.contiguous(), weight.contiguous().transpose(1, 2), groups.ends);
  Tensor y = at::empty({x.size(0), weight.size(1)}, x.options());
  for_each_group(groups, [&](int64_t group, int64_t begin, int64_t end) {
    Tensor rows = y.slice(0, begin, end);
    at::mm_out(rows, x.slice(0, begin, end), weight[group].t());
  });
  return y;
}

Tensor grouped_linear_dx(const Tensor& dy, const Tensor& weight, const RowGroups& groups) {
  if (groups.host_ends.empty() && dy.size(0) > 0)
    return at::_grouped_mm(dy.contiguous(), weight.contiguous(), groups.ends);
  Tensor dx = at::empty({dy.size(0), weight.size(2)}, dy.options());
  for_each_group(groups, [&](int64_t group, int64_t begin, int64_t end) {
    Tensor rows = dx.slice(0, begin, end);
    at::mm_out(rows, dy.slice(0, begin, end), weight[group]);
  });
  return dx;
}

Tensor grouped_linear_dweight(const Tensor& dy, const Tensor& x, const RowGroups& groups) {
  if (groups.host_ends.empty() && x.size(0) > 0)
    return at::_grouped_mm(dy.contiguous().t(), x.contiguous(), groups.ends);
  Tensor dweight = at::empty({groups.count(), dy.size(1), x.size(1)}, x.options());
  if (x.size(0) == 0) return dweight.zero_();
  for_each_group(groups, [&](int64_t group, int64_t begin, int64_t end) {
    Tensor part = dweight[group];
    at::mm_out(part, dy.slice(0, begin, end).t(), x.slice(0, begin, end));
  });
  return dweight;
}

}  // namespace automoe::kernels
