#include "kernels/cuda/common/check.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/common/vector.cuh"
#include "kernels/gated_rms_norm_args.h"

namespace automoe::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256;
constexpr int kTokensOfAPart = 32;

template <typename T>
__device__ float sigmoid(float x) {
  return 1.0f / (1.0f + exponential<T>(-x));
}

// The vectors of one row, which a warp shares.
template <typename T, int kSize>
struct Row {
  using Vec = Vector<T, kSize>;
  int64_t index;     // of [tokens, groups]
  int lane, count;   // vectors
  int64_t column;    // first channel
  int64_t at, gate;  // of its vectors in x and in gate
  const float* weight;

  template <typename Args>
  __device__ explicit Row(const Args& args)
      : index(int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32),
        lane(threadIdx.x % 32),
        count(static_cast<int>(args.width / kSize)),
        column(index % args.groups * args.width),
        at(index * count),
        gate((index / args.groups * args.gate_stride + column) / kSize),
        weight(static_cast<const float*>(args.weight) + column) {}
};

// A warp for each row; the second reading of it comes from the first-level cache.
template <typename T, int kSize>
__global__ void gated_rms_norm_fwd_kernel(const GatedRmsNormFwdArgs args) {
  using Vec = Vector<T, kSize>;
  const Row<T, kSize> row(args);
  if (row.index >= args.tokens * args.groups) return;
  const auto* x = static_cast<const Vec*>(args.x) + row.at;
  const auto* gate = static_cast<const Vec*>(args.gate) + row.gate;
  auto* y = static_cast<Vec*>(args.y) + row.at;
  float squares = 0.0f;
  for (int at = row.lane; at < row.count; at += 32) {
    const Vec v = x[at], g = gate[at];
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      const float gated = v[i] * g[i] * sigmoid<T>(g[i]);
      squares += gated * gated;
    }
  }
  const float inverse_rms = rsqrtf(warp_sum(squares) / args.width + static_cast<float>(args.eps));
  if (row.lane == 0) static_cast<float*>(args.inverse_rms)[row.index] = inverse_rms;
  for (int at = row.lane; at < row.count; at += 32) {
    const Vec v = x[at], g = gate[at];
    Vec out;
#pragma unroll
    for (int i = 0; i < kSize; ++i)
      out.set(i, row.weight[at * kSize + i] * (v[i] * g[i] * sigmoid<T>(g[i]) * inverse_rms));
    y[at] = out;
  }
}

template <typename T, int kSize>
__global__ void gated_rms_norm_bwd_kernel(const GatedRmsNormBwdArgs args) {
  using Vec = Vector<T, kSize>;
  const Row<T, kSize> row(args);
  if (row.index >= args.tokens * args.groups) return;
  const auto* dy = static_cast<const Vec*>(args.dy) + row.at;
  const auto* x = static_cast<const Vec*>(args.x) + row.at;
  const auto* gate = static_cast<const Vec*>(args.gate) + row.gate;
  auto* dx = static_cast<Vec*>(args.dx) + row.at;
  auto* dgate = static_cast<Vec*>(args.dgate) + row.at;
  const float inverse_rms = static_cast<const float*>(args.inverse_rms)[row.index];
  float along = 0.0f;
  for (int at = row.lane; at < row.count; at += 32) {
    const Vec d = dy[at], v = x[at], g = gate[at];
#pragma unroll
    for (int i = 0; i < kSize; ++i)
      along += d[i] * row.weight[at * kSize + i] * (v[i] * g[i] * sigmoid<T>(g[i]));
  }
  const float mean = warp_sum(along) * inverse_rms / args.width;
  for (int at = row.lane; at < row.count; at += 32) {
    const Vec d = dy[at], v = x[at], g = gate[at];
    Vec to_x, to_gate;
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      const float s = sigmoid<T>(g[i]), normed = v[i] * g[i] * s * inverse_rms;
      const float gated = inverse_rms * (d[i] * row.weight[at * kSize + i] - normed * mean);
      to_x.set(i, gated * g[i] * s);
      to_gate.set(i, gated * v[i] * s * (1.0f + g[i] * (1.0f - s)));
    }
    dx[at] = to_x;
    dgate[at] = to_gate;
  }
}

// A thread for kSize channels of a part of the tokens.
template <typename T, int kSize>
__global__ void gated_rms_norm_dweight_kernel(const GatedRmsNormBwdArgs args) {
  using Vec = Vector<T, kSize>;
  const int64_t channels = args.groups * args.width;
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t part = index / (channels / kSize), column = index % (channels / kSize) * kSize;
  if (part >= args.parts) return;
  const int64_t group = column / args.width;
  float sums[kSize] = {};
  for (int64_t t = part * kTokensOfAPart;
       t < args.tokens && t < (part + 1) * int64_t{kTokensOfAPart}; ++t) {
    const int64_t at = (t * channels + column) / kSize;
    const Vec d = static_cast<const Vec*>(args.dy)[at], v = static_cast<const Vec*>(args.x)[at];
    const Vec g = static_cast<const Vec*>(args.gate)[(t * args.gate_stride + column) / kSize];
    const float inverse_rms = static_cast<const float*>(args.inverse_rms)[t * args.groups + group];
#pragma unroll
    for (int i = 0; i < kSize; ++i)
      sums[i] += d[i] * (v[i] * g[i] * sigmoid<T>(g[i]) * inverse_rms);
  }
#pragma unroll
  for (int i = 0; i < kSize; ++i)
    static_cast<float*>(args.dweight_parts)[part * channels + column + i] = sums[i];
}

unsigned blocks(int64_t threads) { return static_cast<unsigned>(divide_up(threads, kThreads)); }

}  // namespace

int64_t gated_rms_norm_parts_cuda(int64_t tokens) { return divide_up(tokens, kTokensOfAPart); }

void gated_rms_norm_fwd_cuda(const GatedRmsNormFwdArgs& args, Stream stream) {
  const int64_t rows = args.tokens * args.groups, size = size_of(args.dtype);
  if (rows * args.width == 0) return;
  const bool vectors = fits_vectors(args.width * size, args.x, args.gate, args.y) &&
                       args.gate_stride * size % 16 == 0;
  visit_vectors(
      args.dtype, vectors, [&]<typename T, int kSize>(Tag<T>, std::integral_constant<int, kSize>) {
        gated_rms_norm_fwd_kernel<T, kSize><<<blocks(rows * 32), kThreads, 0, stream>>>(args);
      });
  check_launch();
}

void gated_rms_norm_bwd_cuda(const GatedRmsNormBwdArgs& args, Stream stream) {
  const int64_t rows = args.tokens * args.groups, size = size_of(args.dtype);
  if (rows * args.width == 0) return;
  const bool vectors =
      fits_vectors(args.width * size, args.dy, args.x, args.gate, args.dx, args.dgate) &&
      args.gate_stride * size % 16 == 0;
  visit_vectors(
      args.dtype, vectors, [&]<typename T, int kSize>(Tag<T>, std::integral_constant<int, kSize>) {
        gated_rms_norm_bwd_kernel<T, kSize><<<blocks(rows * 32), kThreads, 0, stream>>>(args);
        const int64_t threads = args.parts * args.groups * (args.width / kSize);
        gated_rms_norm_dweight_kernel<T, kSize><<<blocks(threads), kThreads, 0, stream>>>(args);
      });
  check_launch();
}

}  // namespace automoe::kernels
