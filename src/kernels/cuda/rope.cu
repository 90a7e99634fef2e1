#include "kernels/cuda/common/check.cuh"
#include "kernels/cuda/common/vector.cuh"
#include "kernels/rope_args.h"

namespace automoe::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256;

// A thread rotates one vector of a head's first half together with its partner in the second half,
// or copies one vector of what passes through. Indices fit 32 bits: a tensor beyond that has 64-bit
// strides but fewer than 2^32 vectors, which the launcher checks.
template <typename T, int kSize>
__global__ void rope_kernel(const RopeArgs args) {
  using Vec = Vector<T, kSize>;
  const auto pairs = static_cast<uint32_t>(args.half / kSize);               // vectors of a half
  const auto units = static_cast<uint32_t>((args.dim - args.half) / kSize);  // work items of a head
  const auto heads = static_cast<uint32_t>(args.heads);
  const uint32_t index = blockIdx.x * kThreads + threadIdx.x;
  const uint32_t row = index / units, unit = index - row * units;  // row = token * heads + head
  const uint32_t token = row / heads, head = row - token * heads;
  if (token >= args.tokens) return;
  const auto* x = reinterpret_cast<const Vec*>(static_cast<const T*>(args.x) +
                                               token * args.token_stride + head * args.head_stride);
  auto* y = static_cast<Vec*>(args.y) + int64_t{row} * (args.dim / kSize);
  if (unit >= pairs) {
    y[pairs + unit] = x[pairs + unit];
    return;
  }
  const Vec cos = static_cast<const Vec*>(args.cos)[token * pairs + unit];
  const Vec sin = static_cast<const Vec*>(args.sin)[token * pairs + unit];
  const Vec first = x[unit], second = x[pairs + unit];
  const float sign = args.inverse ? -1.0f : 1.0f;
  Vec a, b;
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    const float s = sign * sin[i];
    a.set(i, first[i] * cos[i] - second[i] * s);
    b.set(i, second[i] * cos[i] + first[i] * s);
  }
  y[unit] = a;
  y[pairs + unit] = b;
}

}  // namespace

void rope_cuda(const RopeArgs& args, Stream stream) {
  if (args.tokens * args.heads * args.dim == 0) return;
  const int64_t size = size_of(args.dtype);
  const bool vectors = fits_vectors(args.half * size, args.x, args.cos, args.sin, args.y) &&
                       args.dim * size % 16 == 0 && args.token_stride * size % 16 == 0 &&
                       args.head_stride * size % 16 == 0;
  visit_vectors(
      args.dtype, vectors, [&]<typename T, int kSize>(Tag<T>, std::integral_constant<int, kSize>) {
        const int64_t items = args.tokens * args.heads * ((args.dim - args.half) / kSize);
        AUTOMOE_CHECK(items + kThreads <= UINT32_MAX, "[rope] ", args.tokens, " tokens of ",
                      args.heads, " heads of ", args.dim,
                      " are too many for one call; split the batch");
        rope_kernel<T, kSize>
            <<<static_cast<unsigned>(divide_up(items, kThreads)), kThreads, 0, stream>>>(args);
      });
  check_launch();
}

}  // namespace automoe::kernels
