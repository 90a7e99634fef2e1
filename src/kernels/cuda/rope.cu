#include "kernels/cuda/common/check.cuh"
#include "kernels/cuda/common/vector.cuh"
#include "kernels/rope_args.h"

namespace automoe::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256;

// A thread rotates one vector of a head together with its partner, in the other half or, in pairs,
// next to it, or copies one vector of what passes through. Indices fit 32 bits: a tensor beyond
// that has 64-bit strides but fewer than 2^32 vectors, which the launcher checks.
template <typename T, int kSize, bool kPairs>
__global__ void rope_kernel(const RopeArgs args) {
  using Vec = Vector<T, kSize>;
  const auto half = static_cast<uint32_t>(args.half / kSize);                // vectors of a half
  const auto skipped = static_cast<uint32_t>(args.first / kSize);            // and before it
  const auto units = static_cast<uint32_t>((args.dim - args.half) / kSize);  // work items of a head
  const auto heads = static_cast<uint32_t>(args.heads);
  const uint32_t index = blockIdx.x * kThreads + threadIdx.x;
  const uint32_t row = index / units, unit = index - row * units;  // row = token * heads + head
  const uint32_t token = row / heads, head = row - token * heads;
  if (token >= args.tokens) return;
  const auto* x = reinterpret_cast<const Vec*>(static_cast<const T*>(args.x) +
                                               token * args.token_stride + head * args.head_stride);
  auto* y = static_cast<Vec*>(args.y) + int64_t{row} * (args.dim / kSize);
  if (unit >= half) {
    const uint32_t at = unit - half < skipped ? unit - half : unit + half;
    y[at] = x[at];
    return;
  }
  const Vec cos = static_cast<const Vec*>(args.cos)[token * half + unit];
  const Vec sin = static_cast<const Vec*>(args.sin)[token * half + unit];
  const uint32_t at = skipped + (kPairs ? 2 * unit : unit), partner = at + (kPairs ? 1 : half);
  const Vec x0 = x[at], x1 = x[partner];
  const float sign = args.inverse ? -1.0f : 1.0f;
  Vec y0, y1;
  const auto get = [&](int i) { return i < kSize ? x0[i] : x1[i - kSize]; };
  const auto set = [&](int i, float value) {
    if (i < kSize)
      y0.set(i, value);
    else
      y1.set(i - kSize, value);
  };
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    const int a = kPairs ? 2 * i : i, b = kPairs ? a + 1 : kSize + i;
    const float first = get(a), second = get(b), s = sign * sin[i];
    set(a, first * cos[i] - second * s);
    set(b, second * cos[i] + first * s);
  }
  y[at] = y0;
  y[partner] = y1;
}

}  // namespace

void rope_cuda(const RopeArgs& args, Stream stream) {
  if (args.tokens * args.heads * args.dim == 0) return;
  const int64_t size = size_of(args.dtype);
  const bool vectors = fits_vectors(args.half * size, args.x, args.cos, args.sin, args.y) &&
                       args.dim * size % 16 == 0 && args.first * size % 16 == 0 &&
                       args.token_stride * size % 16 == 0 && args.head_stride * size % 16 == 0;
  visit_vectors(
      args.dtype, vectors, [&]<typename T, int kSize>(Tag<T>, std::integral_constant<int, kSize>) {
        const int64_t items = args.tokens * args.heads * ((args.dim - args.half) / kSize);
        AUTOMOE_CHECK(items + kThreads <= UINT32_MAX, "[rope] ", args.tokens, " tokens of ",
                      args.heads, " heads of ", args.dim,
                      " are too many for one call; split the batch");
        const auto kernel = args.pairs ? rope_kernel<T, kSize, true> : rope_kernel<T, kSize, false>;
        kernel<<<static_cast<unsigned>(divide_up(items, kThreads)), kThreads, 0, stream>>>(args);
      });
  check_launch();
}

}  // namespace automoe::kernels
