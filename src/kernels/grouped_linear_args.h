// Arguments of the kernel that adds biases to grouped rows; the contract is in grouped_linear.h.
#pragma once

#include "kernels/dtype.h"

namespace automoe::kernels {

struct AddGroupBiasArgs {
  void* rows_io;        // [rows, width]
  const void* bias;     // [groups, width]
  const int32_t* ends;  // [groups] ascending; rows at ends[groups - 1] and beyond are left alone
  int64_t rows, width, groups;
  DType dtype;
};

void add_group_bias_cuda(const AddGroupBiasArgs& args, Stream stream);

}  // namespace automoe::kernels
