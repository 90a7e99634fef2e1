#include "kernels/cuda/common/check.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/common/vector.cuh"
#include "kernels/grouped_linear_args.h"

namespace automoe::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256;

// A warp for each row.
template <typename T, int kSize>
__global__ void add_group_bias_kernel(const AddGroupBiasArgs args) {
  using Vec = Vector<T, kSize>;
  const int64_t row = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  if (row >= args.rows || row >= args.ends[args.groups - 1]) return;
  const int lane = threadIdx.x % 32, count = static_cast<int>(args.width / kSize);
  int group = 0;  // the number of groups that end at this row or before
  for (int64_t first = 0; first < args.groups; first += 32) {
    const bool before = first + lane < args.groups && args.ends[first + lane] <= row;
    group += __popc(__ballot_sync(kAllLanes, before));
  }
  auto* rows = static_cast<Vec*>(args.rows_io) + row * count;
  const auto* biases = static_cast<const Vec*>(args.bias) + int64_t{group} * count;
  for (int at = lane; at < count; at += 32) {
    Vec sum = rows[at];
    const Vec bias = biases[at];
#pragma unroll
    for (int i = 0; i < kSize; ++i) sum.set(i, sum[i] + bias[i]);
    rows[at] = sum;
  }
}

}  // namespace

void add_group_bias_cuda(const AddGroupBiasArgs& args, Stream stream) {
  if (args.rows * args.width == 0) return;
  const bool vectors = fits_vectors(args.width * size_of(args.dtype), args.rows_io, args.bias);
  visit_vectors(args.dtype, vectors,
                [&]<typename T, int kSize>(Tag<T>, std::integral_constant<int, kSize>) {
                  const auto grid = static_cast<unsigned>(divide_up(args.rows, kThreads / 32));
                  add_group_bias_kernel<T, kSize><<<grid, kThreads, 0, stream>>>(args);
                });
  check_launch();
}

}  // namespace automoe::kernels
