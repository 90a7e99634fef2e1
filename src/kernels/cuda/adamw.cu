#include "kernels/adamw_args.h"
#include "kernels/cuda/common/check.cuh"
#include "kernels/cuda/common/vector.cuh"

namespace automoe::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256;

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

// Where the numbers of a parameter lie: P for the parameter itself, an fp32 master, fp32 moments.
template <typename P>
struct WithMaster {
  template <int kCount>
  struct Block {
    Vector<float, kCount> master, exp_avg, exp_avg_sq;
    Vector<P, kCount> parameter;

    __device__ void load(const AdamWArgs& args, int64_t index) {
      master = reinterpret_cast<const decltype(master)*>(args.master)[index];
      exp_avg = static_cast<const decltype(exp_avg)*>(args.exp_avg)[index];
      exp_avg_sq = static_cast<const decltype(exp_avg_sq)*>(args.exp_avg_sq)[index];
    }
    __device__ Element get(int i) const { return {master[i], exp_avg[i], exp_avg_sq[i]}; }
    __device__ void set(int i, const Element& e, uint64_t) {
      master.set(i, e.master);
      exp_avg.set(i, e.exp_avg);
      exp_avg_sq.set(i, e.exp_avg_sq);
      parameter.set(i, e.master);
    }
    __device__ void store(const AdamWArgs& args, int64_t index) const {
      reinterpret_cast<decltype(exp_avg)*>(args.master)[index] = master;
      static_cast<decltype(exp_avg)*>(args.exp_avg)[index] = exp_avg;
      static_cast<decltype(exp_avg)*>(args.exp_avg_sq)[index] = exp_avg_sq;
      if (args.parameter) static_cast<Vector<P, kCount>*>(args.parameter)[index] = parameter;
    }
  };
  static constexpr int kSize = 4;  // elements of a thread: 16 bytes of each fp32 array
};

// bf16 parameter and moments, rounded at random.
struct WithoutMaster {
  template <int kCount>
  struct Block {
    using Stored = Vector<__nv_bfloat16, kCount>;
    Stored parameter, exp_avg, exp_avg_sq;

    __device__ void load(const AdamWArgs& args, int64_t index) {
      parameter = static_cast<const Stored*>(args.parameter)[index];
      exp_avg = static_cast<const Stored*>(args.exp_avg)[index];
      exp_avg_sq = static_cast<const Stored*>(args.exp_avg_sq)[index];
    }
    __device__ Element get(int i) const { return {parameter[i], exp_avg[i], exp_avg_sq[i]}; }
    __device__ void set(int i, const Element& e, uint64_t random) {
      const auto rounded = [&](float x, int shift) {
        return __ushort_as_bfloat16(
            rounded_at_random(__float_as_uint(x), static_cast<uint32_t>(random >> shift)));
      };
      parameter.values[i] = rounded(e.master, 0);
      exp_avg.values[i] = rounded(e.exp_avg, 16);
      exp_avg_sq.values[i] = rounded(e.exp_avg_sq, 32);
    }
    __device__ void store(const AdamWArgs& args, int64_t index) const {
      static_cast<Stored*>(args.parameter)[index] = parameter;
      static_cast<Stored*>(args.exp_avg)[index] = exp_avg;
      static_cast<Stored*>(args.exp_avg_sq)[index] = exp_avg_sq;
    }
  };
  static constexpr int kSize = 8;
};

// Elements [index * kCount, (index + 1) * kCount).
template <typename Layout, typename G, int kCount>
__device__ void update_block(const AdamWArgs& args, int64_t index, float scale) {
  typename Layout::template Block<kCount> block;
  block.load(args, index);
  const auto grad = static_cast<const Vector<G, kCount>*>(args.grad)[index];
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    block.set(i, updated(args, block.get(i), grad[i] * scale),
              mix(args.seed + static_cast<uint64_t>(index * kCount + i)));
  block.store(args, index);
}

// G: element type of the gradient. kVectors: all arrays are aligned.
template <typename Layout, typename G, bool kVectors>
__global__ void adamw_kernel(const AdamWArgs args, const float* device_scale) {
  constexpr int kSize = Layout::kSize;
  const float scale = args.grad_scale * (device_scale ? *device_scale : 1.0f);
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x, first = index * kSize;
  if (kVectors && first + kSize <= args.count)
    return update_block<Layout, G, kSize>(args, index, scale);
  for (int64_t at = first; at < min(first + kSize, args.count); ++at)
    update_block<Layout, G, 1>(args, at, scale);
}

template <typename Layout, typename G>
void launch(const AdamWArgs& args, const float* device_scale, Stream stream) {
  const bool vectors =
      fits_vectors(0, args.parameter, args.master, args.exp_avg, args.exp_avg_sq, args.grad);
  const auto grid =
      static_cast<unsigned>(divide_up(divide_up(args.count, Layout::kSize), kThreads));
  if (vectors)
    adamw_kernel<Layout, G, true><<<grid, kThreads, 0, stream>>>(args, device_scale);
  else
    adamw_kernel<Layout, G, false><<<grid, kThreads, 0, stream>>>(args, device_scale);
}

}  // namespace

void adamw_cuda(const AdamWArgs& args, const float* device_scale, Stream stream) {
  if (args.count == 0) return;
  visit_float(args.grad_dtype, [&]<typename G>(Tag<G>) {
    if (args.master == nullptr) return launch<WithoutMaster, G>(args, device_scale, stream);
    visit_float(args.parameter_dtype,
                [&]<typename P>(Tag<P>) { launch<WithMaster<P>, G>(args, device_scale, stream); });
  });
  check_launch();
}

}  // namespace automoe::kernels
