// Arguments of the kernel between the head's matrix products; the contract is in
// linear_cross_entropy.h.
#pragma once

#include "kernels/dtype.h"

namespace automoe::kernels {

struct CrossEntropyArgs {
  void* logits;  // [rows, vocab] contiguous; becomes softmax - one_hot where `want_gradient`
  const int64_t* targets;  // [rows] in [0, vocab), or -100: loss and gradient of the row are 0
  float* losses;           // [rows]
  int64_t rows, vocab;
  bool want_gradient;
  DType dtype;  // of the logits; fp32 on CPU
};

void cross_entropy_cpu(const CrossEntropyArgs& args);
void cross_entropy_cuda(const CrossEntropyArgs& args, Stream stream);

}  // namespace automoe::kernels
