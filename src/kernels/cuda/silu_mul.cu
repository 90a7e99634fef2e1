#include "kernels/cuda/common/check.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/common/vector.cuh"
#include "kernels/silu_mul_args.h"

namespace automoe::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256;

template <typename T>
__device__ float sigmoid(float x) {
  if constexpr (sizeof(T) == 4)
    return 1.0f / (1.0f + expf(-x));
  else
    return __fdividef(1.0f, 1.0f + __expf(-x));
}

// Where vector `index` of [rows, count] lies.
struct Place {
  int64_t row;
  int column;
};

__device__ Place place(int64_t index, int count) {
  if (index <= UINT32_MAX) {  // 64-bit division costs several times as much
    const auto small = static_cast<uint32_t>(index), row = small / static_cast<uint32_t>(count);
    return {row, static_cast<int>(small - row * count)};
  }
  return {index / count, static_cast<int>(index % count)};
}

template <typename T, int kSize>
__global__ void silu_mul_fwd_kernel(const SiluMulFwdArgs args) {
  using Vec = Vector<T, kSize>;
  const int count = static_cast<int>(args.width / kSize);
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= args.rows * count) return;
  const Place at = place(index, count);
  const int64_t in = at.row * (args.in_stride / kSize) + at.column;
  const Vec gate = static_cast<const Vec*>(args.gate)[in],
            up = static_cast<const Vec*>(args.up)[in];
  Vec out;
#pragma unroll
  for (int i = 0; i < kSize; ++i) out.set(i, gate[i] * sigmoid<T>(gate[i]) * up[i]);
  static_cast<Vec*>(args.out)[index] = out;
}

template <typename T, int kSize>
__global__ void silu_mul_bwd_kernel(const SiluMulBwdArgs args) {
  using Vec = Vector<T, kSize>;
  const int count = static_cast<int>(args.width / kSize);
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= args.rows * count) return;
  const Place at = place(index, count);
  const int64_t in = at.row * (args.in_stride / kSize) + at.column;
  const int64_t out = at.row * (args.grad_stride / kSize) + at.column;
  const Vec d_out = static_cast<const Vec*>(args.d_out)[index];
  const Vec gate = static_cast<const Vec*>(args.gate)[in],
            up = static_cast<const Vec*>(args.up)[in];
  Vec d_gate, d_up;
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    const float g = gate[i], s = sigmoid<T>(g);
    d_gate.set(i, d_out[i] * up[i] * s * (1.0f + g * (1.0f - s)));
    d_up.set(i, d_out[i] * g * s);
  }
  static_cast<Vec*>(args.d_gate)[out] = d_gate;
  static_cast<Vec*>(args.d_up)[out] = d_up;
}

// A warp for each row.
template <typename T, int kSize>
__global__ void silu_mul_scored_bwd_kernel(const SiluMulScoredBwdArgs args) {
  using Vec = Vector<T, kSize>;
  const int64_t row = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  if (row >= args.rows || row >= *args.used) return;
  const int lane = threadIdx.x % 32, count = static_cast<int>(args.width / kSize);
  const auto* d_outs = static_cast<const Vec*>(args.d_out) + row * count;
  const auto* gates = static_cast<const Vec*>(args.gate_up) + row * 2 * count;
  auto* d_gates = static_cast<Vec*>(args.d_gate_up) + row * 2 * count;
  auto* scaleds = static_cast<Vec*>(args.scaled) + row * count;
  const float score = static_cast<const float*>(args.score)[args.pair[row]];
  float d_score = 0.0f;
#pragma unroll 2
  for (int at = lane; at < count; at += 32) {
    const Vec d_out = d_outs[at], gate = gates[at], up = gates[count + at];
    Vec d_gate, d_up, scaled;
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      const float g = gate[i], s = sigmoid<T>(g), activation = g * s * up[i], d = d_out[i] * score;
      d_score += d_out[i] * activation;
      scaled.set(i, activation * score);
      d_gate.set(i, d * up[i] * s * (1.0f + g * (1.0f - s)));
      d_up.set(i, d * g * s);
    }
    d_gates[at] = d_gate;
    d_gates[count + at] = d_up;
    scaleds[at] = scaled;
  }
  d_score = warp_sum(d_score);
  if (lane == 0) static_cast<float*>(args.d_score)[args.pair[row]] = d_score;
}

}  // namespace

void silu_mul_fwd_cuda(const SiluMulFwdArgs& args, Stream stream) {
  if (args.rows * args.width == 0) return;
  const bool vectors =
      fits_vectors(args.width * size_of(args.dtype), args.gate, args.up, args.out) &&
      args.in_stride * size_of(args.dtype) % 16 == 0;
  visit_vectors(args.dtype, vectors,
                [&]<typename T, int kSize>(Tag<T>, std::integral_constant<int, kSize>) {
                  const auto grid =
                      static_cast<unsigned>(divide_up(args.rows * (args.width / kSize), kThreads));
                  silu_mul_fwd_kernel<T, kSize><<<grid, kThreads, 0, stream>>>(args);
                });
  check_launch();
}

void silu_mul_bwd_cuda(const SiluMulBwdArgs& args, Stream stream) {
  if (args.rows * args.width == 0) return;
  const int64_t size = size_of(args.dtype);
  const bool vectors =
      fits_vectors(args.width * size, args.d_out, args.gate, args.up, args.d_gate, args.d_up) &&
      args.in_stride * size % 16 == 0 && args.grad_stride * size % 16 == 0;
  visit_vectors(args.dtype, vectors,
                [&]<typename T, int kSize>(Tag<T>, std::integral_constant<int, kSize>) {
                  const auto grid =
                      static_cast<unsigned>(divide_up(args.rows * (args.width / kSize), kThreads));
                  silu_mul_bwd_kernel<T, kSize><<<grid, kThreads, 0, stream>>>(args);
                });
  check_launch();
}

void silu_mul_scored_bwd_cuda(const SiluMulScoredBwdArgs& args, Stream stream) {
  if (args.rows == 0) return;
  const bool vectors = fits_vectors(args.width * size_of(args.dtype), args.d_out, args.gate_up,
                                    args.d_gate_up, args.scaled);
  visit_vectors(args.dtype, vectors,
                [&]<typename T, int kSize>(Tag<T>, std::integral_constant<int, kSize>) {
                  const auto grid = static_cast<unsigned>(divide_up(args.rows, kThreads / 32));
                  silu_mul_scored_bwd_kernel<T, kSize><<<grid, kThreads, 0, stream>>>(args);
                });
  check_launch();
}

}  // namespace automoe::kernels
