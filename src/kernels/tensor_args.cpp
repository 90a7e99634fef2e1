#include "kernels/tensor_args.h"

#include "automoe/error.h"

#ifdef AUTOMOE_WITH_CUDA
#include <c10/cuda/CUDAStream.h>
#endif

namespace automoe::kernels {

DType dtype_of(const at::Tensor& tensor, const char* op) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return DType::kFloat32;
    case at::kBFloat16:
      return DType::kBFloat16;
    case at::kHalf:
      return DType::kFloat16;
    case at::kDouble:
      if (tensor.is_cpu()) return DType::kFloat64;
      [[fallthrough]];
    default:
      throw ValueError(text("[", op, "] float32, bfloat16 or float16 expected, got ",
                            tensor.scalar_type(), " on ", tensor.device()));
  }
}

#ifdef AUTOMOE_WITH_CUDA

CurrentStream::CurrentStream(const at::Tensor& tensor)
    : guard_(tensor.device()),
      stream_(c10::cuda::getCurrentCUDAStream(tensor.device().index()).stream()) {}

#else

CurrentStream::CurrentStream(const at::Tensor& tensor) : stream_(nullptr) {
  throw RuntimeError(text("automoe was built without CUDA kernels, got a tensor on ",
                          tensor.device(), "; build with AUTOMOE_CUDA=ON"));
}

#endif

}  // namespace automoe::kernels
