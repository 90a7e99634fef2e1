#include <vector>

#include "kernels/cpu/loops.h"
#include "kernels/routing_args.h"

namespace automoe::kernels {
namespace {

using namespace cpu;

template <typename T>
[[gnu::always_inline]] inline void combine_tokens(const CombineRowsArgs& args, int64_t begin,
                                                  int64_t end) {
  using W = Wide<T>;
  constexpr int64_t kBlock = 256;  // columns whose sums stay in registers or the L1 cache
  for (int64_t token = begin; token < end; ++token)
    for (int64_t first = 0; first < args.width; first += kBlock) {
      const int64_t count = std::min(kBlock, args.width - first);
      W sums[kBlock] = {};
      for (int64_t pair = token * args.slots; pair < (token + 1) * args.slots; ++pair) {
        const int32_t position = args.position[pair];
        if (position >= *args.used) continue;
        const W score = args.score ? static_cast<const W*>(args.score)[pair] : W(1);
        const auto* row = static_cast<const T*>(args.rows_in) + position * args.width + first;
        for (int64_t i = 0; i < count; ++i) sums[i] += score * widen(row[i]);
      }
      auto* out = static_cast<T*>(args.tokens_out) + token * args.width + first;
      for (int64_t i = 0; i < count; ++i) out[i] = T(sums[i]);
    }
}

AUTOMOE_VECTOR_CLONES
void combine_tokens_float(const CombineRowsArgs& args, int64_t begin, int64_t end) {
  combine_tokens<float>(args, begin, end);
}

}  // namespace

void sort_pairs_cpu(const SortPairsArgs& args) {
  const auto bucket = [&](int64_t pair) {  // the last one is that of skipped pairs
    const int64_t expert = args.expert[pair];
    return expert >= 0 && expert < args.experts ? expert : args.experts;
  };
  std::vector<int32_t> next(args.experts + 2, 0);
  for (int64_t pair = 0; pair < args.pairs; ++pair) ++next[bucket(pair) + 1];
  for (int64_t expert = 0; expert < args.experts; ++expert)
    args.ends[expert] = next[expert + 1] += next[expert];
  for (int64_t pair = 0; pair < args.pairs; ++pair) {
    args.position[pair] = next[bucket(pair)]++;
    args.pair[args.position[pair]] = static_cast<int32_t>(pair);
  }
}

void gather_rows_cpu(const GatherRowsArgs& args) {
  visit_dtype(args.dtype, [&]<typename T>(T) {
    const auto* tokens = static_cast<const T*>(args.tokens);
    auto* rows = static_cast<T*>(args.rows_out);
    parallel_rows(std::min<int64_t>(args.rows, *args.used), args.width,
                  [&](int64_t begin, int64_t end) {
                    for (int64_t row = begin; row < end; ++row)
                      std::copy_n(tokens + args.pair[row] / args.slots * args.width, args.width,
                                  rows + row * args.width);
                  });
  });
}

void combine_rows_cpu(const CombineRowsArgs& args) {
  visit_dtype(args.dtype, [&]<typename T>(T) {
    parallel_rows(args.tokens, args.width * args.slots, [&](int64_t begin, int64_t end) {
      if constexpr (std::is_same_v<T, float>) return combine_tokens_float(args, begin, end);
      combine_tokens<T>(args, begin, end);
    });
  });
}

}  // namespace automoe::kernels
