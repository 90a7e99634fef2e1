// A batch as one stream of real tokens: padding is taken out, documents keep apart.
#pragma once

#include <ATen/core/Tensor.h>

#include "automoe/model.h"
#include "kernels/documents.h"

namespace automoe::blocks {

using at::Tensor;

struct Sequences {
  int64_t batch = 0, length = 0;  // B, S of the batch
  Tensor ids;                     // [T] int64
  Tensor positions;               // [T] int64
  Tensor targets;                 // [T] int64, -100 = no loss; undefined without labels
  Tensor token_index;             // [T] where each token stood in B*S; undefined where T = B*S
  kernels::Documents documents;

  /// Follows Transformers: with an attention mask rows are the documents; without one, and with
  /// position_ids given, a new document begins wherever they do not go up by one.
  /// Labels are shifted left by one within a row. Throws ValueError on shapes that do not fit.
  static Sequences from(const Batch& batch);

  /// [T, N] -> [B, S, N], zeros at padding.
  Tensor pad(const Tensor& tokens) const;
};

}  // namespace automoe::blocks
