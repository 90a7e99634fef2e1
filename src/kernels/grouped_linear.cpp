#include "kernels/grouped_linear.h"

#include <ATen/ops/_grouped_mm.h>

#include "automoe/error.h"
#include "kernels/grouped_linear_args.h"
#include "kernels/tensor_args.h"

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

// Whether [G, N, K] lies in memory as [G, K, N].
bool is_transposed(const Tensor& weight) {
  return !weight.is_contiguous() && weight.transpose(1, 2).is_contiguous();
}

// `weight` in one of its two layouts.
Tensor dense(const Tensor& weight) { return is_transposed(weight) ? weight : weight.contiguous(); }

// [R, K] and [R, N] -> [G, K, N]: the rows of each group, transposed, times those of the other.
Tensor group_products(const Tensor& a, const Tensor& b, const RowGroups& groups) {
  if (groups.host_ends.empty() && a.size(0) > 0)
    return at::_grouped_mm(a.contiguous().t(), b.contiguous(), groups.ends);
  Tensor products = at::empty({groups.count(), a.size(1), b.size(1)}, a.options());
  if (a.size(0) == 0) return products.zero_();
  for_each_group(groups, [&](int64_t group, int64_t begin, int64_t end) {
    Tensor part = products[group];
    at::mm_out(part, a.slice(0, begin, end).t(), b.slice(0, begin, end));
  });
  return products;
}

void add_bias_on_device(const Tensor& rows, const Tensor& bias, const RowGroups& groups) {
  const Tensor biases = bias.contiguous();
  add_group_bias_cuda({.rows_io = rows.mutable_data_ptr(),
                       .bias = biases.const_data_ptr(),
                       .ends = groups.ends.const_data_ptr<int32_t>(),
                       .rows = rows.size(0),
                       .width = rows.size(1),
                       .groups = groups.count(),
                       .dtype = dtype_of(rows, "grouped_linear")},
                      CurrentStream(rows));
}

}  // namespace

bool grouped_on_device(const Tensor& x, const Tensor& weight) {
  return x.is_cuda() && x.scalar_type() == at::kBFloat16 && weight.size(1) % 8 == 0 &&
         weight.size(2) % 8 == 0;
}

Tensor grouped_linear(const Tensor& x, const Tensor& weight, const Tensor& bias,
                      const RowGroups& groups) {
  if (groups.host_ends.empty() && x.size(0) > 0) {
    const Tensor y = at::_grouped_mm(x.contiguous(), dense(weight).transpose(1, 2), groups.ends);
    if (bias.defined()) add_bias_on_device(y, bias, groups);
    return y;
  }
  Tensor y = at::empty({x.size(0), weight.size(1)}, x.options());
  for_each_group(groups, [&](int64_t group, int64_t begin, int64_t end) {
    Tensor rows = y.slice(0, begin, end);
    if (bias.defined())
      at::addmm_out(rows, bias[group], x.slice(0, begin, end), weight[group].t());
    else
      at::mm_out(rows, x.slice(0, begin, end), weight[group].t());
  });
  return y;
}

Tensor grouped_linear_dx(const Tensor& dy, const Tensor& weight, const RowGroups& groups) {
  if (groups.host_ends.empty() && dy.size(0) > 0)
    return at::_grouped_mm(dy.contiguous(), dense(weight), groups.ends);
  Tensor dx = at::empty({dy.size(0), weight.size(2)}, dy.options());
  for_each_group(groups, [&](int64_t group, int64_t begin, int64_t end) {
    Tensor rows = dx.slice(0, begin, end);
    at::mm_out(rows, dy.slice(0, begin, end), weight[group]);
  });
  return dx;
}

Tensor grouped_linear_dweight(const Tensor& dy, const Tensor& x, const Tensor& weight,
                              const RowGroups& groups) {
  return is_transposed(weight) ? group_products(x, dy, groups).transpose(1, 2)
                               : group_products(dy, x, groups);
}

// A bias is the weight of an input that is always 1; the device wants eight of them.
Tensor grouped_linear_dbias(const Tensor& dy, const RowGroups& groups) {
  const Tensor ones = at::ones({dy.size(0), 8}, dy.options());
  return group_products(ones, dy, groups).select(1, 0).contiguous();
}

}  // namespace automoe::kernels
