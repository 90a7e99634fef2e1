// From tensors to the plain arguments of kernels, for the op files.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include "kernels/dtype.h"

namespace automoe::kernels {

/// Throws ValueError, naming `op`, for a dtype without kernels on the tensor's device.
DType dtype_of(const at::Tensor& tensor, const char* op);

/// The stream that kernels on a tensor's CUDA device belong to now. While it lives, that device is
/// current: launch_cuda(args, CurrentStream(tensor)). Throws RuntimeError in builds without CUDA
/// kernels.
class CurrentStream {
 public:
  explicit CurrentStream(const at::Tensor& tensor);
  operator Stream() const { return stream_; }

 private:
  c10::OptionalDeviceGuard guard_;
  Stream stream_;
};

/// What sums and statistics of a dtype are kept in: double for double, else fp32.
inline at::ScalarType wide_type(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace automoe::kernels
