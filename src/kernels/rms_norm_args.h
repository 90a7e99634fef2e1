// Arguments of the rms_norm kernels; the contract is in rms_norm.h. All arrays are contiguous.
#pragma once

#include "kernels/dtype.h"

namespace automoe::kernels {

/// What is rounded to x's dtype besides the result of y = w * (x / rms): the normalised x before it
/// meets the weight, as Llama's code has it, or nothing, as GPT-OSS's.
enum class NormRounding : uint8_t { kNormalised, kResultOnly };

struct RmsNormFwdArgs {
  const void* x;         // [rows, width]
  const void* residual;  // [rows, width] or null
  const void* weight;    // [width]
  void* sum;             // [rows, width] x + residual; null without residual
  void* y;               // [rows, width]
  void* inverse_rms;     // [rows] fp32, double for double
  int64_t rows, width;
  double eps;
  NormRounding rounding;
  DType dtype;  // of all but inverse_rms
};

struct RmsNormBwdArgs {
  const void* dy;           // [rows, width]
  const void* d_sum;        // [rows, width] added to dx, or null
  const void* x;            // [rows, width] what was normalised: the sum where there was a residual
  const void* weight;       // [width]
  const void* inverse_rms;  // [rows]
  void* dx;                 // [rows, width] or null
  void* dweight_parts;  // [parts, width] fp32 (double for double), or null; their sum is dweight
  int64_t rows, width, parts;
  NormRounding rounding;
  DType dtype;  // of dy, d_sum, x, weight, dx
};

void rms_norm_fwd_cpu(const RmsNormFwdArgs& args);
void rms_norm_bwd_cpu(const RmsNormBwdArgs& args);
int64_t rms_norm_parts_cuda(int64_t rows, int64_t width);  // how many `parts` its backward wants
void rms_norm_fwd_cuda(const RmsNormFwdArgs& args, Stream stream);
void rms_norm_bwd_cuda(const RmsNormBwdArgs& args, Stream stream);

}  // namespace automoe::kernels
