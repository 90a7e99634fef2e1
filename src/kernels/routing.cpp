#include "kernels/routing.h"

#include "automoe/error.h"
#include "kernels/routing_args.h"
#include "kernels/tensor_args.h"

namespace automoe::kernels {

using at::Tensor;

Routing sort_pairs(const Tensor& indices, int64_t num_experts) {
  const Tensor dense = indices.contiguous();
  const auto int32 = dense.options().dtype(at::kInt);
  const int64_t pairs = dense.numel();
  AUTOMOE_CHECK_VALUE(dense.scalar_type() == at::kLong && num_experts > 0 && pairs <= INT32_MAX,
                      "[routing] int64 indices, at most 2^31 - 1 of them, expected, got ",
                      dense.sizes(), " ", dense.scalar_type(), " for ", num_experts, " experts");
  Routing out{at::empty({pairs}, int32), at::empty(dense.sizes(), int32),
              at::empty({num_experts}, int32)};
  SortPairsArgs args{.expert = dense.const_data_ptr<int64_t>(),
                     .pair = out.pair.data_ptr<int32_t>(),
                     .position = out.position.data_ptr<int32_t>(),
                     .ends = out.ends.data_ptr<int32_t>(),
                     .scratch = nullptr,
                     .pairs = pairs,
                     .experts = num_experts};
  if (dense.is_cpu()) {
    sort_pairs_cpu(args);
    return out;
  }
  const Tensor scratch = at::empty({sort_pairs_scratch_cuda(pairs, num_experts)}, int32);
  args.scratch = scratch.data_ptr<int32_t>();
  sort_pairs_cuda(args, CurrentStream(dense));
  return out;
}

Tensor gather_rows(const Tensor& x, const Routing& routing) {
  const Tensor dense = x.contiguous();
  Tensor rows = at::empty({routing.rows(), x.size(1)}, x.options());
  const GatherRowsArgs args{.tokens = dense.const_data_ptr(),
                            .pair = routing.pair.const_data_ptr<int32_t>(),
                            .used = routing.used(),
                            .rows_out = rows.mutable_data_ptr(),
                            .rows = rows.size(0),
                            .width = rows.size(1),
                            .slots = routing.slots(),
                            .dtype = dtype_of(x, "routing")};
  if (x.is_cpu())
    gather_rows_cpu(args);
  else
    gather_rows_cuda(args, CurrentStream(x));
  return rows;
}

Tensor combine_rows(const Tensor& rows, const Routing& routing, const Tensor& score) {
  Tensor out = at::empty({routing.tokens(), rows.size(1)}, rows.options());
  const CombineRowsArgs args{.rows_in = rows.const_data_ptr(),
                             .position = routing.position.const_data_ptr<int32_t>(),
                             .used = routing.used(),
                             .score = score.defined() ? score.const_data_ptr() : nullptr,
                             .tokens_out = out.mutable_data_ptr(),
                             .tokens = out.size(0),
                             .width = out.size(1),
                             .slots = routing.slots(),
                             .dtype = dtype_of(rows, "routing")};
  if (rows.is_cpu())
    combine_rows_cpu(args);
  else
    combine_rows_cuda(args, CurrentStream(rows));
  return out;
}

}  // namespace automoe::kernels
