#include "kernels/adamw_args.h"
#include "kernels/cuda/common/check.cuh"
#include "kernels/cuda/common/vector.cuh"

namespace automoe::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256;
constexpr int kSize = 4;  // elements of a thread: 16 bytes of each fp32 array

struct Element {
  float master, exp_avg, exp_avg_sq;
};

__device__ Element updated(const AdamWArgs& args, Element e, float grad) {
  e.exp_avg += (grad - e.exp_avg) * (1.0f - args.beta1);
  e.exp_avg_sq = e.exp_avg_sq * args.beta2 + grad * grad * (1.0f - args.beta2);
  e.master = e.master * args.keep -
             args.rate * e.exp_avg / (sqrtf(e.exp_avg_sq) * args.root_correction + args.epsilon);
  return e;
}

template <typename P, typename G>
__device__ void update_one(const AdamWArgs& args, int64_t at, float scale) {
  const Element e = updated(args, {args.master[at], args.exp_avg[at], args.exp_avg_sq[at]},
                            to_float(static_cast<const G*>(args.grad)[at]) * scale);
  args.master[at] = e.master;
  args.exp_avg[at] = e.exp_avg;
  args.exp_avg_sq[at] = e.exp_avg_sq;
  if (args.parameter) static_cast<P*>(args.parameter)[at] = from_float<P>(e.master);
}

// P, G: element types of the parameter and the gradient. kVectors: all arrays are aligned.
template <typename P, typename G, bool kVectors>
__global__ void adamw_kernel(const AdamWArgs args, const float* device_scale) {
  using Wide = Vector<float, kSize>;
  const float scale = args.grad_scale * (device_scale ? *device_scale : 1.0f);
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x, first = index * kSize;
  if (!kVectors || first + kSize > args.count) {
    for (int64_t at = first; at < min(first + kSize, args.count); ++at)
      update_one<P, G>(args, at, scale);
    return;
  }
  Wide master = reinterpret_cast<Wide*>(args.master)[index];
  Wide exp_avg = reinterpret_cast<Wide*>(args.exp_avg)[index];
  Wide exp_avg_sq = reinterpret_cast<Wide*>(args.exp_avg_sq)[index];
  const auto grad = static_cast<const Vector<G, kSize>*>(args.grad)[index];
  Vector<P, kSize> parameter;
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    const Element e = updated(args, {master[i], exp_avg[i], exp_avg_sq[i]}, grad[i] * scale);
    master.set(i, e.master);
    exp_avg.set(i, e.exp_avg);
    exp_avg_sq.set(i, e.exp_avg_sq);
    parameter.set(i, e.master);
  }
  reinterpret_cast<Wide*>(args.master)[index] = master;
  reinterpret_cast<Wide*>(args.exp_avg)[index] = exp_avg;
  reinterpret_cast<Wide*>(args.exp_avg_sq)[index] = exp_avg_sq;
  if (args.parameter) static_cast<Vector<P, kSize>*>(args.parameter)[index] = parameter;
}

}  // namespace

void adamw_cuda(const AdamWArgs& args, const float* device_scale, Stream stream) {
  if (args.count == 0) return;
  const bool vectors =
      fits_vectors(0, args.parameter, args.master, args.exp_avg, args.exp_avg_sq, args.grad);
  const auto grid = static_cast<unsigned>(divide_up(divide_up(args.count, kSize), kThreads));
  visit_float(args.parameter_dtype, [&]<typename P>(Tag<P>) {
    visit_float(args.grad_dtype, [&]<typename G>(Tag<G>) {
      if (vectors)
        adamw_kernel<P, G, true><<<grid, kThreads, 0, stream>>>(args, device_scale);
      else
        adamw_kernel<P, G, false><<<grid, kThreads, 0, stream>>>(args, device_scale);
    });
  });
  check_launch();
}

}  // namespace automoe::kernels
