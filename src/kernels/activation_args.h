// Activations, their formulas, and the arguments of their kernels; the contract of the op is in
// activation.h.
#pragma once

#include "kernels/dtype.h"

namespace automoe::kernels {

/// One activation of a row of pre-activations. Those with a gate take 2I of them for I results.
struct Activation {
  enum Kind : uint8_t {
    kSiluMul,        // gate, up the halves of a row: silu(gate) * up. SwiGLU, arXiv 2002.05202
    kClampedSwiglu,  // gate, up in turn: gate to at most limit, up to within +-limit, then
                     // gate * sigmoid(alpha * gate) * (up + 1). GPT-OSS, arXiv 2508.10925
    kReluSquared,    // no gate: max(x, 0)^2. arXiv 2109.08668
  };
  Kind kind = kSiluMul;
  double alpha = 1.702, limit = 7.0;  // of kClampedSwiglu

  /// Pre-activations for one result.
  int64_t num_inputs() const { return kind == kReluSquared ? 1 : 2; }
};

struct ActivationFwdArgs {
  Activation activation;
  const void* gate;  // rows of [width], in_stride elements apart; kClampedSwiglu: of [2 width]
  const void* up;    // likewise for kSiluMul, two tensors or two halves of one; else null
  void* out;         // [rows, width] contiguous
  int64_t rows, width, in_stride;
  DType dtype;
};

struct ActivationBwdArgs {
  Activation activation;
  const void* d_out;  // [rows, width] contiguous
  const void* gate;   // as above
  const void* up;
  void* d_gate;  // as gate and up, rows grad_stride apart
  void* d_up;
  int64_t rows, width, in_stride, grad_stride;
  DType dtype;
};

/// The backward pass inside an expert layer: out = score * activate(pre) @ down. Row r of the
/// sorted rows is the (token, slot) pair `pair[r]`; rows at *used and beyond are left alone.
struct ActivationScoredBwdArgs {
  Activation activation;
  const void* d_out;    // [rows, width] gradient of activate(pre) where every score were 1
  const void* pre;      // [rows, num_inputs * width]
  const void* score;    // [pairs] fp32, double for double
  const int32_t* pair;  // [rows]
  const int32_t* used;  // one number
  void* d_pre;          // as pre
  void* scaled;         // [rows, width] score * activate(pre)
  void* d_score;        // [pairs] as score; written for the pairs of used rows
  int64_t rows, width;
  DType dtype;
};

void activation_fwd_cpu(const ActivationFwdArgs& args);
void activation_bwd_cpu(const ActivationBwdArgs& args);
void activation_scored_bwd_cpu(const ActivationScoredBwdArgs& args);
void activation_fwd_cuda(const ActivationFwdArgs& args, Stream stream);
void activation_bwd_cuda(const ActivationBwdArgs& args, Stream stream);
void activation_scored_bwd_cuda(const ActivationScoredBwdArgs& args, Stream stream);

}  // namespace automoe::kernels
