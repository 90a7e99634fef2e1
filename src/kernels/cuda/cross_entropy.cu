#include "kernels/cross_entropy_args.h"
#include "kernels/cuda/common/check.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/common/vector.cuh"

namespace automoe::kernels {
namespace {

using namespace cuda;

// One block an SM: the rows at work (304 KB each at 151,936 logits) stay in the L2 cache between
// the two passes.
constexpr int kThreads = 1024;
constexpr int kAhead = 4;  // vectors in flight
constexpr int64_t kIgnored = -100;

// Running maximum and the sum of e^(x - maximum).
struct Running {
  float top = -INFINITY, sum = 0.0f;

  __device__ void merge(const Running& other) {
    const float higher = fmaxf(top, other.top);
    if (higher == -INFINITY) return;
    sum = sum * __expf(top - higher) + other.sum * __expf(other.top - higher);
    top = higher;
  }
};

__device__ Running block_merge(Running mine, Running* slots) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    mine.merge({__shfl_xor_sync(kAllLanes, mine.top, offset),
                __shfl_xor_sync(kAllLanes, mine.sum, offset)});
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = mine;
  __syncthreads();
  Running total;
  for (int warp = 0; warp < kThreads / 32; ++warp) total.merge(slots[warp]);
  return total;
}

template <typename T, int kSize>
__device__ Running row_statistics(const Vector<T, kSize>* logits, int count) {
  using Vec = Vector<T, kSize>;
  Running mine;
  for (int first = threadIdx.x; first < count; first += kThreads * kAhead) {
    Vec vectors[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (first + i * kThreads < count) vectors[i] = logits[first + i * kThreads];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i * kThreads >= count) continue;
      float top = vectors[i][0];
#pragma unroll
      for (int j = 1; j < kSize; ++j) top = fmaxf(top, vectors[i][j]);
      if (top > mine.top) {
        mine.sum *= __expf(mine.top - top);
        mine.top = top;
      }
#pragma unroll
      for (int j = 0; j < kSize; ++j) mine.sum += exponential<T>(vectors[i][j] - mine.top);
    }
  }
  return mine;
}

template <typename T, int kSize>
__global__ void __launch_bounds__(kThreads, 1) cross_entropy_kernel(const CrossEntropyArgs args) {
  using Vec = Vector<T, kSize>;
  __shared__ Running slots[kThreads / 32];
  const int64_t row = blockIdx.x, target = args.targets[row];
  const int count = static_cast<int>(args.vocab / kSize);
  auto* logits = static_cast<Vec*>(args.logits) + row * count;
  if (target == kIgnored) {
    if (threadIdx.x == 0) args.losses[row] = 0.0f;
    if (!args.want_gradient) return;
    Vec zeros;
#pragma unroll
    for (int j = 0; j < kSize; ++j) zeros.set(j, 0.0f);
    for (int at = threadIdx.x; at < count; at += kThreads) logits[at] = zeros;
    return;
  }
  const bool valid = target >= 0 && target < args.vocab;
  const float own =
      valid ? to_float(static_cast<const T*>(args.logits)[row * args.vocab + target]) : NAN;
  const Running all =
      block_merge(row_statistics<T, kSize>(logits, count), slots);  // its barrier: `own` is read
  if (threadIdx.x == 0) args.losses[row] = logf(all.sum) + all.top - own;
  if (!args.want_gradient) return;
  const float scale = 1.0f / all.sum;
  for (int first = threadIdx.x; first < count; first += kThreads * kAhead) {
    Vec vectors[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (first + i * kThreads < count) vectors[i] = logits[first + i * kThreads];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int at = first + i * kThreads;
      if (at >= count) continue;
      Vec out;
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const float p = exponential<T>(vectors[i][j] - all.top) * scale;
        out.set(j, int64_t{at} * kSize + j == target ? p - 1.0f : p);
      }
      logits[at] = out;
    }
  }
}

}  // namespace

void cross_entropy_cuda(const CrossEntropyArgs& args, Stream stream) {
  if (args.rows == 0) return;
  const bool vectors = fits_vectors(args.vocab * size_of(args.dtype), args.logits);
  visit_vectors(args.dtype, vectors,
                [&]<typename T, int kSize>(Tag<T>, std::integral_constant<int, kSize>) {
                  cross_entropy_kernel<T, kSize>
                      <<<static_cast<unsigned>(args.rows), kThreads, 0, stream>>>(args);
                });
  check_launch();
}

}  // namespace automoe::kernels
