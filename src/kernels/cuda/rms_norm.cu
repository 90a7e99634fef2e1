#include <algorithm>

#include "kernels/cuda/common/check.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/common/vector.cuh"
#include "kernels/rms_norm_args.h"

namespace automoe::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256;  // of a forward block, unless a row needs more
constexpr int kBackwardThreads =
    512;  // of a backward block: fewer, larger blocks write fewer parts of dweight
constexpr int kMaxWarps = kBackwardThreads / 32;
constexpr int kForwardItems = 4;  // vectors of a row that a thread keeps in registers
constexpr int kBackwardItems = 2;

// The normalised x as it meets the weight.
template <typename T>
__device__ float rounded(float normed, NormRounding rounding) {
  return rounding == NormRounding::kNormalised ? to_float(from_float<T>(normed)) : normed;
}

// kLanes threads share a row. A row of up to kLanes * kForwardItems vectors is read once; a longer
// one twice.
template <typename T, int kSize, int kLanes>
__global__ void rms_norm_fwd_kernel(const RmsNormFwdArgs args) {
  using Vec = Vector<T, kSize>;
  __shared__ float slots[2 * kMaxWarps];
  const Group<kLanes> group;
  const int64_t row = int64_t{blockIdx.x} * (blockDim.x / kLanes) + group.index;
  const bool active = row < args.rows;
  const int count = active ? static_cast<int>(args.width / kSize) : 0;  // vectors
  const auto* x = static_cast<const Vec*>(args.x) + row * count;
  const auto* residual = static_cast<const Vec*>(args.residual) + (args.residual ? row * count : 0);
  const auto* weight = static_cast<const Vec*>(args.weight);
  auto* sum = static_cast<Vec*>(args.sum) + (args.residual ? row * count : 0);
  auto* y = static_cast<Vec*>(args.y) + row * count;

  Vec kept[kForwardItems];
  float squares = 0.0f;
  for (int first = group.lane; first < count; first += kLanes * kForwardItems) {
#pragma unroll
    for (int item = 0; item < kForwardItems; ++item) {
      const int at = first + item * kLanes;
      if (at >= count) continue;
      Vec v = x[at];
      if (args.residual) {
        const Vec r = residual[at];
#pragma unroll
        for (int i = 0; i < kSize; ++i) v.set(i, v[i] + r[i]);
        sum[at] = v;
      }
#pragma unroll
      for (int i = 0; i < kSize; ++i) squares += v[i] * v[i];
      kept[item] = v;
    }
  }
  const float inverse_rms =
      rsqrtf(group.sum(squares, slots, 0) / args.width + static_cast<float>(args.eps));
  if (active && group.lane == 0) static_cast<float*>(args.inverse_rms)[row] = inverse_rms;

  const bool reread = count > kLanes * kForwardItems;
  const Vec* source = args.residual ? sum : x;
  for (int first = group.lane; first < count; first += kLanes * kForwardItems) {
#pragma unroll
    for (int item = 0; item < kForwardItems; ++item) {
      const int at = first + item * kLanes;
      if (at >= count) continue;
      if (reread) kept[item] = source[at];
      const Vec w = weight[at];
      Vec out;
#pragma unroll
      for (int i = 0; i < kSize; ++i)
        out.set(i, rounded<T>(kept[item][i] * inverse_rms, args.rounding) * w[i]);
      y[at] = out;
    }
  }
}

// Block p handles every parts-th set of rows and writes part p of dweight. kKept: a row fits the
// registers of its lanes, and so do its sums for dweight; otherwise the sums live in the part
// itself.
template <typename T, int kSize, int kLanes, bool kKept>
__global__ void __launch_bounds__(kBackwardThreads) rms_norm_bwd_kernel(const RmsNormBwdArgs args) {
  using Vec = Vector<T, kSize>;
  __shared__ float slots[2 * kMaxWarps];
  extern __shared__ float shared_dweight[];  // [groups, width], kKept only
  const Group<kLanes> group;
  const int groups = blockDim.x / kLanes, count = static_cast<int>(args.width / kSize);
  const auto* weight = static_cast<const Vec*>(args.weight);
  float* part =
      static_cast<float*>(args.dweight_parts) + (args.dweight_parts ? blockIdx.x * args.width : 0);
  float dweight[kBackwardItems][kSize] = {};
  int turn = 0;
  for (int64_t row = int64_t{blockIdx.x} * groups + group.index; row < args.rows;
       row += int64_t{gridDim.x} * groups, turn ^= 1) {
    const auto* x = static_cast<const Vec*>(args.x) + row * count;
    const auto* dy = static_cast<const Vec*>(args.dy) + row * count;
    const float inverse_rms = static_cast<const float*>(args.inverse_rms)[row];
    Vec xs[kBackwardItems], dys[kBackwardItems];
    float along_x = 0.0f;
    for (int first = group.lane; first < count; first += kLanes * kBackwardItems) {
#pragma unroll
      for (int item = 0; item < kBackwardItems; ++item) {
        const int at = first + item * kLanes;
        if (at >= count) continue;
        xs[item] = x[at];
        dys[item] = dy[at];
      }
#pragma unroll
      for (int item = 0; item < kBackwardItems; ++item) {
        const int at = first + item * kLanes;
        if (at >= count) continue;
        const Vec w = weight[at];
#pragma unroll
        for (int i = 0; i < kSize; ++i) {
          const float normed = xs[item][i] * inverse_rms;
          along_x += dys[item][i] * w[i] * normed;
          const float term = dys[item][i] * rounded<T>(normed, args.rounding);
          if constexpr (kKept)
            dweight[item][i] += term;
          else if (args.dweight_parts)
            part[at * kSize + i] += term;
        }
      }
    }
    const float mean = group.sum(along_x, slots, turn) / args.width;
    if (!args.dx) continue;
    auto* dx = static_cast<Vec*>(args.dx) + row * count;
    const auto* d_sum = static_cast<const Vec*>(args.d_sum) + (args.d_sum ? row * count : 0);
    for (int first = group.lane; first < count; first += kLanes * kBackwardItems) {
#pragma unroll
      for (int item = 0; item < kBackwardItems; ++item) {
        const int at = first + item * kLanes;
        if (at >= count) continue;
        if constexpr (!kKept) {
          xs[item] = x[at];
          dys[item] = dy[at];
        }
        const Vec w = weight[at];
        Vec extra, out;
        if (args.d_sum) extra = d_sum[at];
#pragma unroll
        for (int i = 0; i < kSize; ++i) {
          const float normed = xs[item][i] * inverse_rms;
          const float gradient = inverse_rms * (dys[item][i] * w[i] - normed * mean);
          out.set(i, args.d_sum ? gradient + extra[i] : gradient);
        }
        dx[at] = out;
      }
    }
  }
  if constexpr (kKept) {
    if (!args.dweight_parts) return;
#pragma unroll
    for (int item = 0; item < kBackwardItems; ++item) {
      const int at = group.lane + item * kLanes;
      if (at >= count) continue;
#pragma unroll
      for (int i = 0; i < kSize; ++i)
        shared_dweight[group.index * args.width + at * kSize + i] = dweight[item][i];
    }
    __syncthreads();
    for (int column = threadIdx.x; column < args.width; column += blockDim.x) {
      float total = 0.0f;
      for (int g = 0; g < groups; ++g) total += shared_dweight[g * args.width + column];
      part[column] = total;
    }
  }
}

// Calls visit with the smallest number of lanes whose registers hold `vectors` of a row, `items`
// each, or with the largest there is.
template <typename F>
void visit_lanes(int64_t vectors, int items, F&& visit) {
  if (vectors <= 8 * items) return visit(std::integral_constant<int, 8>{});
  if (vectors <= 32 * items) return visit(std::integral_constant<int, 32>{});
  if (vectors <= 128 * items) return visit(std::integral_constant<int, 128>{});
  return visit(std::integral_constant<int, 512>{});
}

}  // namespace

int64_t rms_norm_parts_cuda(int64_t rows, int64_t) {
  return std::clamp<int64_t>(rows, 1, 2 * num_sms());
}

void rms_norm_fwd_cuda(const RmsNormFwdArgs& args, Stream stream) {
  if (args.rows == 0 || args.width == 0) return;
  const int64_t row_bytes = args.width * size_of(args.dtype);
  const bool vectors =
      fits_vectors(row_bytes, args.x, args.residual, args.weight, args.sum, args.y);
  visit_vectors(
      args.dtype, vectors, [&]<typename T, int kSize>(Tag<T>, std::integral_constant<int, kSize>) {
        visit_lanes(args.width / kSize, kForwardItems,
                    [&]<int kLanes>(std::integral_constant<int, kLanes>) {
                      constexpr int kBlock = std::max(kThreads, kLanes);
                      const auto grid =
                          static_cast<unsigned>(divide_up(args.rows, kBlock / kLanes));
                      rms_norm_fwd_kernel<T, kSize, kLanes><<<grid, kBlock, 0, stream>>>(args);
                    });
      });
  check_launch();
}

void rms_norm_bwd_cuda(const RmsNormBwdArgs& args, Stream stream) {
  if (args.width == 0) return;
  const auto part_bytes = static_cast<size_t>(args.parts * args.width) * sizeof(float);
  const bool vectors = fits_vectors(args.width * size_of(args.dtype), args.dy, args.d_sum, args.x,
                                    args.weight, args.dx);
  const auto grid = static_cast<unsigned>(
      args.parts > 0 ? args.parts : rms_norm_parts_cuda(args.rows, args.width));
  visit_vectors(
      args.dtype, vectors, [&]<typename T, int kSize>(Tag<T>, std::integral_constant<int, kSize>) {
        visit_lanes(
            args.width / kSize, kBackwardItems,
            [&]<int kLanes>(std::integral_constant<int, kLanes>) {
              if (args.width / kSize <= kLanes * kBackwardItems) {
                const size_t shared = kBackwardThreads / kLanes * args.width * sizeof(float);
                rms_norm_bwd_kernel<T, kSize, kLanes, true>
                    <<<grid, kBackwardThreads, shared, stream>>>(args);
              } else {
                if (args.dweight_parts)
                  AUTOMOE_CUDA_CHECK(cudaMemsetAsync(args.dweight_parts, 0, part_bytes, stream));
                rms_norm_bwd_kernel<T, kSize, 512, false>
                    <<<grid, kBackwardThreads, 0, stream>>>(args);
              }
            });
      });
  check_launch();
}

}  // namespace automoe::kernels
