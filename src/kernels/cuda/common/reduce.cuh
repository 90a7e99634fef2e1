// Sums over the lanes that share a row. The order is fixed, so results repeat bit for bit.
#pragma once

namespace automoe::kernels::cuda {

constexpr unsigned kAllLanes = 0xffffffffu;

/// Every lane of a group of kLanes (a power of two up to 32) gets the group's sum. Only the group
/// need call.
template <int kLanes = 32>
__device__ inline float warp_sum(float x) {
  unsigned group = kAllLanes;
  if constexpr (kLanes < 32) group = ((1u << kLanes) - 1) << (threadIdx.x % 32 / kLanes * kLanes);
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(group, x, offset);
  return x;
}

/// A group of kLanes threads of a block; group g is the threads from g * kLanes. More than a warp:
/// the group has its own barrier, so groups need not run in step.
template <int kLanes>
struct Group {
  static constexpr int kWarps = kLanes > 32 ? kLanes / 32 : 1;

  int lane = threadIdx.x % kLanes;
  int index = threadIdx.x / kLanes;

  __device__ void sync() const {
    if constexpr (kLanes > 32)
      asm volatile("bar.sync %0, %1;" ::"r"(index + 1), "n"(kLanes) : "memory");
  }

  /// `slots`: [2][warps of the block] in shared memory; `turn` flips between calls, so that one
  /// barrier a call is enough.
  __device__ float sum(float x, float* slots, int turn) const {
    if constexpr (kLanes <= 32) {
      return warp_sum<kLanes>(x);
    } else {
      x = warp_sum(x);
      float* mine = slots + turn * (blockDim.x / 32) + index * kWarps;
      if (threadIdx.x % 32 == 0) mine[lane / 32] = x;
      sync();
      float total = 0.0f;
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp) total += mine[warp];
      return total;
    }
  }
};

}  // namespace automoe::kernels::cuda
