// Arguments of the kernels that move rows between tokens and experts; the contract is in routing.h.
#pragma once

#include "kernels/dtype.h"

namespace automoe::kernels {

struct SortPairsArgs {
  const int64_t* expert;  // [pairs]; outside [0, experts): skipped
  int32_t* pair;          // [pairs] the pairs by expert, stable, the skipped ones last
  int32_t* position;      // [pairs] where each pair stands in `pair`
  int32_t* ends;          // [experts]
  int32_t* scratch;       // [sort_pairs_scratch_cuda(...)], CUDA only
  int64_t pairs, experts;
};

struct GatherRowsArgs {
  const void* tokens;   // [tokens, width]
  const int32_t* pair;  // [rows]; pair / slots is the token
  const int32_t* used;  // one number: rows there and beyond are left alone
  void* rows_out;       // [rows, width]
  int64_t rows, width, slots;
  DType dtype;
};

struct CombineRowsArgs {
  const void* rows_in;      // [rows, width]
  const int32_t* position;  // [tokens, slots]
  const int32_t* used;      // one number: positions there and beyond are skipped
  const void* score;        // [tokens, slots] fp32 (double for double), or null for ones
  void* tokens_out;         // [tokens, width] sum over the slots
  int64_t tokens, width, slots;
  DType dtype;
};

int64_t sort_pairs_scratch_cuda(int64_t pairs, int64_t experts);  // size of its scratch, in int32

void sort_pairs_cpu(const SortPairsArgs& args);
void gather_rows_cpu(const GatherRowsArgs& args);
void combine_rows_cpu(const CombineRowsArgs& args);
void sort_pairs_cuda(const SortPairsArgs& args, Stream stream);
void gather_rows_cuda(const GatherRowsArgs& args, Stream stream);
void combine_rows_cuda(const CombineRowsArgs& args, Stream stream);

}  // namespace automoe::kernels
