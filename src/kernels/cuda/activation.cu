#include "kernels/activation_args.h"
#include "kernels/activation_formulas.h"
#include "kernels/cuda/common/check.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/common/vector.cuh"

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

// Gates and ups, or their gradients, of the kSize results from `column` * kSize on. `gates` and
// `ups` point to a row.
template <typename Formula, typename T, int kSize>
struct Inputs {
  using Vec = Vector<T, kSize>;
  static constexpr InputLayout kLayout = Formula::kLayout;
  Vec first, second;  // gates and ups; kPairs: both in turn, through first and on through second

  __device__ static Inputs load(const void* gates, const void* ups, int column) {
    const auto* from = static_cast<const Vec*>(gates);
    if constexpr (kLayout == InputLayout::kPairs) return {from[2 * column], from[2 * column + 1]};
    if constexpr (kLayout == InputLayout::kGateOnly) return {from[column], Vec{}};
    return {from[column], static_cast<const Vec*>(ups)[column]};
  }
  __device__ void store(void* gates, void* ups, int column) const {
    auto* to = static_cast<Vec*>(gates);
    if constexpr (kLayout == InputLayout::kPairs) {
      to[2 * column] = first;
      to[2 * column + 1] = second;
    } else {
      to[column] = first;
      if constexpr (kLayout == InputLayout::kHalves) static_cast<Vec*>(ups)[column] = second;
    }
  }

  __device__ float gate(int i) const {
    return kLayout == InputLayout::kPairs ? in_turn(2 * i) : first[i];
  }
  __device__ float up(int i) const {
    return kLayout == InputLayout::kPairs ? in_turn(2 * i + 1) : second[i];
  }
  __device__ void set(int i, float gate, float up) {
    if constexpr (kLayout == InputLayout::kPairs) {
      (2 * i < kSize ? first : second).set(2 * i % kSize, gate);
      (2 * i + 1 < kSize ? first : second).set((2 * i + 1) % kSize, up);
    } else {
      first.set(i, gate);
      second.set(i, up);
    }
  }
  __device__ float in_turn(int i) const { return i < kSize ? first[i] : second[i - kSize]; }

  __device__ Activated<float> evaluate(const Formula& formula, int i) const {
    const float g = gate(i);
    return formula.at(g, up(i), sigmoid<T>(formula.sigmoid_of(g)));
  }
};

// Address of row `row` in `rows`, whose rows lie `stride` elements apart; null stays null.
template <typename T>
__device__ const void* row_of(const void* rows, int64_t row, int64_t stride) {
  return rows ? static_cast<const T*>(rows) + row * stride : nullptr;
}
template <typename T>
__device__ void* row_of(void* rows, int64_t row, int64_t stride) {
  return rows ? static_cast<T*>(rows) + row * stride : nullptr;
}

template <typename Formula, typename T, int kSize>
__global__ void activation_fwd_kernel(const ActivationFwdArgs args, const Formula formula) {
  using In = Inputs<Formula, T, kSize>;
  const int count = static_cast<int>(args.width / kSize);
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= args.rows * count) return;
  const Place at = place(index, count);
  const In in = In::load(row_of<T>(args.gate, at.row, args.in_stride),
                         row_of<T>(args.up, at.row, args.in_stride), at.column);
  Vector<T, kSize> out;
#pragma unroll
  for (int i = 0; i < kSize; ++i) out.set(i, in.evaluate(formula, i).value);
  static_cast<Vector<T, kSize>*>(args.out)[index] = out;
}

template <typename Formula, typename T, int kSize>
__global__ void activation_bwd_kernel(const ActivationBwdArgs args, const Formula formula) {
  using In = Inputs<Formula, T, kSize>;
  const int count = static_cast<int>(args.width / kSize);
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= args.rows * count) return;
  const Place at = place(index, count);
  const auto d_out = static_cast<const Vector<T, kSize>*>(args.d_out)[index];
  const In in = In::load(row_of<T>(args.gate, at.row, args.in_stride),
                         row_of<T>(args.up, at.row, args.in_stride), at.column);
  In grad;
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    const Activated<float> a = in.evaluate(formula, i);
    grad.set(i, d_out[i] * a.by_gate, d_out[i] * a.by_up);
  }
  grad.store(row_of<T>(args.d_gate, at.row, args.grad_stride),
             row_of<T>(args.d_up, at.row, args.grad_stride), at.column);
}

// A warp for each row.
template <typename Formula, typename T, int kSize>
__global__ void activation_scored_bwd_kernel(const ActivationScoredBwdArgs args,
                                             const Formula formula) {
  using Vec = Vector<T, kSize>;
  using In = Inputs<Formula, T, kSize>;
  const int64_t row = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  if (row >= args.rows || row >= *args.used) return;
  const int lane = threadIdx.x % 32, count = static_cast<int>(args.width / kSize);
  const int64_t in_width = (In::kLayout == InputLayout::kGateOnly ? 1 : 2) * args.width;
  const auto* d_outs = static_cast<const Vec*>(args.d_out) + row * count;
  const auto* pre = static_cast<const T*>(args.pre) + row * in_width;
  auto* d_pre = static_cast<T*>(args.d_pre) + row * in_width;
  auto* scaleds = static_cast<Vec*>(args.scaled) + row * count;
  const float score = static_cast<const float*>(args.score)[args.pair[row]];
  float d_score = 0.0f;
#pragma unroll 2
  for (int at = lane; at < count; at += 32) {
    const Vec d_out = d_outs[at];
    const In in = In::load(pre, pre + args.width, at);
    In grad;
    Vec scaled;
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      const Activated<float> a = in.evaluate(formula, i);
      const float d = d_out[i] * score;
      d_score += d_out[i] * a.value;
      scaled.set(i, a.value * score);
      grad.set(i, d * a.by_gate, d * a.by_up);
    }
    grad.store(d_pre, d_pre + args.width, at);
    scaleds[at] = scaled;
  }
  d_score = warp_sum(d_score);
  if (lane == 0) static_cast<float*>(args.d_score)[args.pair[row]] = d_score;
}

// Calls launch(Tag<T>, integral constant of the vector's size, formula).
template <typename F>
void visit_kernels(const Activation& activation, DType dtype, bool vectors, F&& launch) {
  visit_vectors(dtype, vectors, [&](auto tag, auto size) {
    visit_formula<float>(activation, [&](auto formula) { launch(tag, size, formula); });
  });
}

unsigned vector_blocks(int64_t rows, int64_t width, int size) {
  return static_cast<unsigned>(divide_up(rows * (width / size), kThreads));
}

}  // namespace

void activation_fwd_cuda(const ActivationFwdArgs& args, Stream stream) {
  if (args.rows * args.width == 0) return;
  const bool vectors =
      fits_vectors(args.width * size_of(args.dtype), args.gate, args.up, args.out) &&
      args.in_stride * size_of(args.dtype) % 16 == 0;
  visit_kernels(args.activation, args.dtype, vectors,
                [&]<typename T, int kSize, typename Formula>(
                    Tag<T>, std::integral_constant<int, kSize>, const Formula& formula) {
                  activation_fwd_kernel<Formula, T, kSize>
                      <<<vector_blocks(args.rows, args.width, kSize), kThreads, 0, stream>>>(
                          args, formula);
                });
  check_launch();
}

void activation_bwd_cuda(const ActivationBwdArgs& args, Stream stream) {
  if (args.rows * args.width == 0) return;
  const int64_t size = size_of(args.dtype);
  const bool vectors =
      fits_vectors(args.width * size, args.d_out, args.gate, args.up, args.d_gate, args.d_up) &&
      args.in_stride * size % 16 == 0 && args.grad_stride * size % 16 == 0;
  visit_kernels(args.activation, args.dtype, vectors,
                [&]<typename T, int kSize, typename Formula>(
                    Tag<T>, std::integral_constant<int, kSize>, const Formula& formula) {
                  activation_bwd_kernel<Formula, T, kSize>
                      <<<vector_blocks(args.rows, args.width, kSize), kThreads, 0, stream>>>(
                          args, formula);
                });
  check_launch();
}

void activation_scored_bwd_cuda(const ActivationScoredBwdArgs& args, Stream stream) {
  if (args.rows == 0) return;
  const bool vectors =
      fits_vectors(args.width * size_of(args.dtype), args.d_out, args.pre, args.d_pre, args.scaled);
  visit_kernels(args.activation, args.dtype, vectors,
                [&]<typename T, int kSize, typename Formula>(
                    Tag<T>, std::integral_constant<int, kSize>, const Formula& formula) {
                  const auto grid = static_cast<unsigned>(divide_up(args.rows, kThreads / 32));
                  activation_scored_bwd_kernel<Formula, T, kSize>
                      <<<grid, kThreads, 0, stream>>>(args, formula);
                });
  check_launch();
}

}  // namespace automoe::kernels
