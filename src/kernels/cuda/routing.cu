#include <algorithm>

#include "kernels/cuda/common/check.cuh"
#include "kernels/cuda/common/reduce.cuh"
#include "kernels/cuda/common/vector.cuh"
#include "kernels/routing_args.h"

namespace automoe::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256;
constexpr int kMaxWorkers = 1024;
constexpr int64_t kSharedBytes = 48 << 10;

// A stable counting sort. Worker w, one warp, owns the pairs [w * share, (w + 1) * share). Three
// launches: each worker counts its pairs by bucket; each bucket sums the counts of the workers
// before; each worker places its pairs. The last bucket is that of the skipped pairs.
struct SortPlan {
  int buckets, workers, warps;  // warps: of a block
  int64_t share;

  SortPlan(int64_t pairs, int64_t experts) : buckets(static_cast<int>(experts) + 1) {
    share = std::max<int64_t>(256, divide_up(divide_up(pairs, kMaxWorkers), 32) * 32);
    workers = static_cast<int>(std::max<int64_t>(1, divide_up(pairs, share)));
    warps = static_cast<int>(std::min<int64_t>(8, kSharedBytes / (int64_t{4} * buckets) - 1));
    AUTOMOE_CHECK_VALUE(warps > 0, "[routing] at most 6000 experts expected, got ", experts);
  }
  int blocks() const { return (workers + warps - 1) / warps; }
};

__device__ int bucket_of(const SortPairsArgs& args, int64_t pair) {
  const int64_t expert = args.expert[pair];
  return expert >= 0 && expert < args.experts ? static_cast<int>(expert)
                                              : static_cast<int>(args.experts);
}

// Takes the worker's pairs 32 at a time, in order. `next` [buckets] holds the next free number of
// each bucket; visit(pair, number) is called for each pair.
template <typename F>
__device__ void number_pairs(const SortPairsArgs& args, const SortPlan& plan, int worker, int* next,
                             F&& visit) {
  const int lane = threadIdx.x % 32;
  const int64_t begin = worker * plan.share, end = min(begin + plan.share, args.pairs);
  for (int64_t first = begin; first < end; first += 32) {
    const int64_t pair = first + lane;
    const int bucket = pair < end ? bucket_of(args, pair) : -1;
    const unsigned same = __match_any_sync(kAllLanes, bucket);
    const int before = __popc(same & ((1u << lane) - 1));
    const int number = bucket >= 0 ? next[bucket] + before : 0;
    __syncwarp();
    if (bucket >= 0 && before == 0) next[bucket] += __popc(same);
    __syncwarp();
    if (bucket >= 0) visit(pair, number);
  }
}

// scratch: [buckets, workers] counts, then [buckets] totals.
__global__ void count_pairs_kernel(const SortPairsArgs args, const SortPlan plan) {
  extern __shared__ int shared[];
  const int worker = blockIdx.x * plan.warps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (worker >= plan.workers) return;
  int* counts = shared + threadIdx.x / 32 * plan.buckets;
  for (int bucket = lane; bucket < plan.buckets; bucket += 32) counts[bucket] = 0;
  __syncwarp();
  number_pairs(args, plan, worker, counts, [](int64_t, int) {});
  __syncwarp();
  for (int bucket = lane; bucket < plan.buckets; bucket += 32)
    args.scratch[static_cast<int64_t>(bucket) * plan.workers + worker] = counts[bucket];
}

// A warp for each bucket: counts become the sum of those before, the total goes behind the counts.
__global__ void scan_workers_kernel(const SortPairsArgs args, const SortPlan plan) {
  const int bucket = blockIdx.x, lane = threadIdx.x;
  int* counts = args.scratch + static_cast<int64_t>(bucket) * plan.workers;
  int total = 0;
  for (int first = 0; first < plan.workers; first += 32) {
    const int worker = first + lane, own = worker < plan.workers ? counts[worker] : 0;
    int sum = own;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int lower = __shfl_up_sync(kAllLanes, sum, offset);
      if (lane >= offset) sum += lower;
    }
    if (worker < plan.workers) counts[worker] = total + sum - own;
    total += __shfl_sync(kAllLanes, sum, 31);
  }
  if (lane == 0) args.scratch[static_cast<int64_t>(plan.buckets) * plan.workers + bucket] = total;
}

__global__ void place_pairs_kernel(const SortPairsArgs args, const SortPlan plan) {
  extern __shared__ int shared[];
  int* starts = shared + plan.warps * plan.buckets;  // [buckets]
  const int lane = threadIdx.x % 32, worker = blockIdx.x * plan.warps + threadIdx.x / 32;
  const int* totals = args.scratch + static_cast<int64_t>(plan.buckets) * plan.workers;
  if (threadIdx.x < 32) {  // where each bucket begins
    int start = 0;
    for (int first = 0; first < plan.buckets; first += 32) {
      const int bucket = first + lane, own = bucket < plan.buckets ? totals[bucket] : 0;
      int sum = own;
#pragma unroll
      for (int offset = 1; offset < 32; offset *= 2) {
        const int lower = __shfl_up_sync(kAllLanes, sum, offset);
        if (lane >= offset) sum += lower;
      }
      if (bucket < plan.buckets) starts[bucket] = start + sum - own;
      if (blockIdx.x == 0 && bucket < args.experts) args.ends[bucket] = start + sum;
      start += __shfl_sync(kAllLanes, sum, 31);
    }
  }
  __syncthreads();
  if (worker >= plan.workers) return;
  int* next = shared + threadIdx.x / 32 * plan.buckets;
  for (int bucket = lane; bucket < plan.buckets; bucket += 32)
    next[bucket] =
        starts[bucket] + args.scratch[static_cast<int64_t>(bucket) * plan.workers + worker];
  __syncwarp();
  number_pairs(args, plan, worker, next, [&](int64_t pair, int number) {
    args.position[pair] = number;
    args.pair[number] = static_cast<int>(pair);
  });
}

// A warp copies a row, `Word` by `Word`; `count` words a row.
template <typename Word>
__global__ void gather_rows_kernel(const GatherRowsArgs args, int count) {
  const int64_t row = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  if (row >= args.rows || row >= *args.used) return;
  const int64_t token = static_cast<uint32_t>(args.pair[row]) / static_cast<uint32_t>(args.slots);
  const auto* from = static_cast<const Word*>(args.tokens) + token * count;
  auto* to = static_cast<Word*>(args.rows_out) + row * count;
  constexpr int kAhead = 8;  // loads in flight
  for (int first = threadIdx.x % 32; first < count; first += 32 * kAhead) {
    Word words[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (first + 32 * i < count) words[i] = from[first + 32 * i];
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (first + 32 * i < count) to[first + 32 * i] = words[i];
  }
}

// A block for each token, a thread for each vector of columns.
template <typename T, int kSize>
__global__ void combine_rows_kernel(const CombineRowsArgs args) {
  using Vec = Vector<T, kSize>;
  constexpr int kAhead = 8;
  const int64_t token = blockIdx.x;
  const int count = static_cast<int>(args.width / kSize), slots = static_cast<int>(args.slots);
  const int32_t used = *args.used;
  const int32_t* positions = args.position + token * slots;
  const float* scores = static_cast<const float*>(args.score) + (args.score ? token * slots : 0);
  for (int column = threadIdx.x; column < count; column += blockDim.x) {
    float sums[kSize] = {};
    for (int first = 0; first < slots; first += kAhead) {
      Vec rows[kAhead];
      float score[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        score[i] = 0.0f;
        const int32_t position = first + i < slots ? positions[first + i] : used;
        if (position >= used) continue;
        rows[i] = static_cast<const Vec*>(args.rows_in)[int64_t{position} * count + column];
        score[i] = args.score ? scores[first + i] : 1.0f;
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (first + i >= slots || positions[first + i] >= used) continue;  // rows[i] was not read
#pragma unroll
        for (int j = 0; j < kSize; ++j) sums[j] += score[i] * rows[i][j];
      }
    }
    Vec out;
#pragma unroll
    for (int j = 0; j < kSize; ++j) out.set(j, sums[j]);
    static_cast<Vec*>(args.tokens_out)[token * count + column] = out;
  }
}

}  // namespace

int64_t sort_pairs_scratch_cuda(int64_t pairs, int64_t experts) {
  const SortPlan plan(pairs, experts);
  return static_cast<int64_t>(plan.buckets) * (plan.workers + 1);
}

void sort_pairs_cuda(const SortPairsArgs& args, Stream stream) {
  const SortPlan plan(args.pairs, args.experts);
  const int threads = plan.warps * 32;
  const size_t bytes = sizeof(int) * plan.buckets * (plan.warps + 1);
  count_pairs_kernel<<<plan.blocks(), threads, bytes, stream>>>(args, plan);
  scan_workers_kernel<<<plan.buckets, 32, 0, stream>>>(args, plan);
  place_pairs_kernel<<<plan.blocks(), threads, bytes, stream>>>(args, plan);
  check_launch();
}

void gather_rows_cuda(const GatherRowsArgs& args, Stream stream) {
  if (args.rows == 0 || args.width == 0) return;
  const int64_t bytes = args.width * size_of(args.dtype);
  const auto launch = [&]<typename Word>(Word) {
    const auto grid = static_cast<unsigned>(divide_up(args.rows, kThreads / 32));
    gather_rows_kernel<Word>
        <<<grid, kThreads, 0, stream>>>(args, static_cast<int>(bytes / sizeof(Word)));
  };
  if (fits_vectors(bytes, args.tokens, args.rows_out))
    launch(uint4{});
  else if (size_of(args.dtype) == 4)
    launch(uint32_t{});
  else
    launch(uint16_t{});
  check_launch();
}

void combine_rows_cuda(const CombineRowsArgs& args, Stream stream) {
  if (args.tokens == 0 || args.width == 0) return;
  const bool vectors =
      fits_vectors(args.width * size_of(args.dtype), args.rows_in, args.tokens_out);
  visit_vectors(
      args.dtype, vectors, [&]<typename T, int kSize>(Tag<T>, std::integral_constant<int, kSize>) {
        const int64_t threads =
            std::clamp<int64_t>(divide_up(args.width / kSize, 32) * 32, 32, kThreads);
        combine_rows_kernel<T, kSize>
            <<<static_cast<unsigned>(args.tokens), static_cast<unsigned>(threads), 0, stream>>>(
                args);
      });
  check_launch();
}

}  // namespace automoe::kernels
