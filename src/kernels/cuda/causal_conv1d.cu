#include "kernels/causal_conv1d_args.h"
#include "kernels/cuda/common/check.cuh"
#include "kernels/cuda/common/vector.cuh"

namespace automoe::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256;
constexpr int kRun = 32;    // consecutive tokens of one thread
constexpr int kColumn = 4;  // its channels, where rows are aligned

// The document of a token, and its neighbours.
struct Document {
  const int32_t* offsets;
  int index;
  int64_t begin, end;

  __device__ Document(const int32_t* offsets, int64_t documents, int64_t t) : offsets(offsets) {
    int low = 0, high = static_cast<int>(documents) - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (offsets[middle] <= t)
        low = middle;
      else
        high = middle - 1;
    }
    go_to(low);
  }
  __device__ void go_to(int document) {
    index = document;
    begin = offsets[index];
    end = offsets[index + 1];
  }
};

// What a thread owns: kSize channels from `column` on, and the tokens [begin, end).
template <int kSize>
struct Share {
  int64_t part, column, begin, end;

  __device__ Share(int64_t tokens, int64_t channels) {
    const int64_t count = channels / kSize;
    const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    part = index / count;
    column = index % count * kSize;
    begin = part * kRun;
    end = begin + kRun < tokens ? begin + kRun : tokens;
  }
};

template <int kSize>
struct Filter {
  float tap[kTaps][kSize], bias[kSize];

  __device__ Filter(const void* weight, const void* bias_, int64_t channels, int64_t column) {
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
#pragma unroll
      for (int k = 0; k < kTaps; ++k)
        tap[k][i] = static_cast<const float*>(weight)[k * channels + column + i];
      bias[i] = static_cast<const float*>(bias_)[column + i];
    }
  }
};

template <typename T>
__device__ float sigmoid(float x) {
  return 1.0f / (1.0f + exponential<T>(-x));
}

template <typename T, int kSize>
__device__ Vector<T, kSize> load(const void* x, int64_t at) {
  return *reinterpret_cast<const Vector<T, kSize>*>(static_cast<const T*>(x) + at);
}

template <typename T, int kSize>
__device__ void store(void* x, int64_t at, const Vector<T, kSize>& values) {
  *reinterpret_cast<Vector<T, kSize>*>(static_cast<T*>(x) + at) = values;
}

// Row t of x; zeros before `begin`.
template <typename T, int kSize>
__device__ Vector<T, kSize> row(const void* x, int64_t stride, int64_t t, int64_t begin,
                                int64_t column) {
  if (t >= begin) return load<T, kSize>(x, t * stride + column);
  return {};
}

template <typename T, int kSize>
__global__ void causal_conv1d_fwd_kernel(const CausalConv1dFwdArgs args) {
  using Vec = Vector<T, kSize>;
  const Share<kSize> mine(args.tokens, args.channels);
  if (mine.begin >= args.tokens) return;
  const Filter<kSize> filter(args.weight, args.bias, args.channels, mine.column);
  Document document(args.offsets, args.documents, mine.begin);
  Vec window[kTaps];
#pragma unroll
  for (int k = 1; k < kTaps; ++k)
    window[k] =
        row<T, kSize>(args.x, args.x_stride, mine.begin - kTaps + k, document.begin, mine.column);
  for (int64_t t = mine.begin; t < mine.end; ++t) {
    if (t == document.end) {
      document.go_to(document.index + 1);
#pragma unroll
      for (int k = 0; k < kTaps; ++k) window[k] = Vec{};
    }
#pragma unroll
    for (int k = 0; k + 1 < kTaps; ++k) window[k] = window[k + 1];
    window[kTaps - 1] = load<T, kSize>(args.x, t * args.x_stride + mine.column);
    Vec y;
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      float sum = filter.bias[i];
#pragma unroll
      for (int k = 0; k < kTaps; ++k) sum += filter.tap[k][i] * window[k][i];
      y.set(i, sum * sigmoid<T>(sum));
    }
    store(args.y, t * args.channels + mine.column, y);
  }
}

// From the last token to the first: a token's dx takes the gradients of itself and the next three.
template <typename T, int kSize>
__global__ void causal_conv1d_bwd_kernel(const CausalConv1dBwdArgs args) {
  using Vec = Vector<T, kSize>;
  const Share<kSize> mine(args.tokens, args.channels);
  if (mine.begin >= args.tokens) return;
  const Filter<kSize> filter(args.weight, args.bias, args.channels, mine.column);
  const int64_t last =
      (mine.end + kTaps - 1 < args.tokens ? mine.end + kTaps - 1 : args.tokens) - 1;
  Document document(args.offsets, args.documents, last);
  Vec window[kTaps];
#pragma unroll
  for (int k = 0; k + 1 < kTaps; ++k)
    window[k] =
        row<T, kSize>(args.x, args.x_stride, last - (kTaps - 2) + k, document.begin, mine.column);
  float sums[kTaps + 1][kSize] = {}, later[kTaps][kSize] = {};  // later[0]: d of the sum at t
  for (int64_t t = last; t >= mine.begin; --t) {
    const bool enters = t + 1 == document.begin;
    if (enters) {
      document.go_to(document.index - 1);
#pragma unroll
      for (int k = 0; k + 1 < kTaps; ++k)
        window[k] =
            row<T, kSize>(args.x, args.x_stride, t - (kTaps - 2) + k, document.begin, mine.column);
    }
#pragma unroll
    for (int k = kTaps - 1; k > 0; --k) {
      window[k] = window[k - 1];
#pragma unroll
      for (int i = 0; i < kSize; ++i) later[k][i] = enters ? 0.0f : later[k - 1][i];
    }
    window[0] = row<T, kSize>(args.x, args.x_stride, t - (kTaps - 1), document.begin, mine.column);
    const Vec dy = load<T, kSize>(args.dy, t * args.channels + mine.column);
    const bool own = t < mine.end;
    Vec dx;
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      float sum = filter.bias[i];
#pragma unroll
      for (int k = 0; k < kTaps; ++k) sum += filter.tap[k][i] * window[k][i];
      const float s = sigmoid<T>(sum), d = dy[i] * s * (1.0f + sum * (1.0f - s));
      later[0][i] = d;
      float total = 0.0f;
#pragma unroll
      for (int k = 0; k < kTaps; ++k) {
        total += filter.tap[kTaps - 1 - k][i] * later[k][i];
        if (own) sums[k][i] += d * window[k][i];
      }
      if (own) sums[kTaps][i] += d;
      dx.set(i, total);
    }
    if (own) store(args.dx, t * args.channels + mine.column, dx);
  }
  auto* out = static_cast<float*>(args.sums) + mine.part * (kTaps + 1) * args.channels;
#pragma unroll
  for (int k = 0; k <= kTaps; ++k)
#pragma unroll
    for (int i = 0; i < kSize; ++i) out[k * args.channels + mine.column + i] = sums[k][i];
}

// Calls visit(Tag<T>, integral constant of channels a thread) and gives it the number of blocks.
template <typename F>
void visit_columns(DType dtype, bool aligned, int64_t tokens, int64_t channels, F&& visit) {
  const int64_t threads = divide_up(tokens, kRun) * (aligned ? channels / kColumn : channels);
  const auto grid = static_cast<unsigned>(divide_up(threads, kThreads));
  visit_float(dtype, [&]<typename T>(Tag<T> tag) {
    if (aligned)
      visit(tag, std::integral_constant<int, kColumn>{}, grid);
    else
      visit(tag, std::integral_constant<int, 1>{}, grid);
  });
}

}  // namespace

int64_t causal_conv1d_parts_cuda(int64_t tokens) { return divide_up(tokens, kRun); }

void causal_conv1d_fwd_cuda(const CausalConv1dFwdArgs& args, Stream stream) {
  if (args.tokens * args.channels == 0) return;
  const int64_t size = size_of(args.dtype);
  const bool aligned =
      fits_vectors(args.channels * size, args.x, args.y) && args.x_stride * size % 16 == 0;
  visit_columns(
      args.dtype, aligned, args.tokens, args.channels,
      [&]<typename T, int kSize>(Tag<T>, std::integral_constant<int, kSize>, unsigned grid) {
        causal_conv1d_fwd_kernel<T, kSize><<<grid, kThreads, 0, stream>>>(args);
      });
  check_launch();
}

void causal_conv1d_bwd_cuda(const CausalConv1dBwdArgs& args, Stream stream) {
  if (args.tokens * args.channels == 0) return;
  const int64_t size = size_of(args.dtype);
  const bool aligned = fits_vectors(args.channels * size, args.dy, args.x, args.dx) &&
                       args.x_stride * size % 16 == 0;
  visit_columns(
      args.dtype, aligned, args.tokens, args.channels,
      [&]<typename T, int kSize>(Tag<T>, std::integral_constant<int, kSize>, unsigned grid) {
        causal_conv1d_bwd_kernel<T, kSize><<<grid, kThreads, 0, stream>>>(args);
      });
  check_launch();
}

}  // namespace automoe::kernels
