// libFuzzer target: a safetensors header out of arbitrary bytes. It is refused with a ValueError or
// it is sound: the tensors cover the file, and laid out again they are the same.
#include <algorithm>
#include <cstdlib>

#include "automoe/error.h"
#include "hub/safetensors_header.h"

namespace {

using automoe::ValueError;
using namespace automoe::hub;

void require_sound(std::vector<TensorEntry> tensors, uint64_t data_begin, uint64_t file_bytes) {
  uint64_t at = data_begin;
  for (const TensorEntry& tensor : tensors) {
    if (tensor.begin != at || tensor_bytes(tensor.dtype, tensor.shape) != tensor.end - at)
      std::abort();
    at = tensor.end;
  }
  if (at != file_bytes) std::abort();
  const std::string header = lay_out(tensors);
  const uint64_t new_bytes = header.size() + (file_bytes - data_begin);
  if (header_length(header, new_bytes, "x") + kLengthBytes != header.size()) std::abort();
  if (parse_header(std::string_view(header).substr(kLengthBytes), new_bytes, "x") != tensors)
    std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    header_length(bytes.substr(0, kLengthBytes), size, "x");
  } catch (const ValueError&) {
  }
  if (size < 2) return 0;
  const std::string_view json = bytes.substr(2);  // the first two bytes: how much data follows
  const uint64_t file_bytes = kLengthBytes + json.size() + data[0] + 256u * data[1];
  try {
    require_sound(parse_header(json, file_bytes, "x"), kLengthBytes + json.size(), file_bytes);
  } catch (const ValueError&) {
  }
  return 0;
}
