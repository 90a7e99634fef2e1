#include "hub/safetensors.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include "automoe/error.h"
#include "hub/jobs.h"
#include "hub/mxfp4.h"

namespace automoe::hub {
namespace {

constexpr int64_t kTransferBytes = 16 << 20;
// Small enough to stay in the core's cache between the read and the conversion, and below the size
// from which ATen spreads one copy over OpenMP threads: our own threads already use the cores.
constexpr int64_t kHostStagingElements = 16 << 10;
constexpr int64_t kDeviceStagingElements = 4 << 20;

constexpr std::array kTypes{std::pair{Dtype::kU64, at::kUInt64},
                            std::pair{Dtype::kI64, at::kLong},
                            std::pair{Dtype::kF64, at::kDouble},
                            std::pair{Dtype::kC64, at::kComplexFloat},
                            std::pair{Dtype::kF32, at::kFloat},
                            std::pair{Dtype::kU32, at::kUInt32},
                            std::pair{Dtype::kI32, at::kInt},
                            std::pair{Dtype::kBF16, at::kBFloat16},
                            std::pair{Dtype::kF16, at::kHalf},
                            std::pair{Dtype::kU16, at::kUInt16},
                            std::pair{Dtype::kI16, at::kShort},
                            std::pair{Dtype::kF8E5M2FNUZ, at::kFloat8_e5m2fnuz},
                            std::pair{Dtype::kF8E4M3FNUZ, at::kFloat8_e4m3fnuz},
                            std::pair{Dtype::kF8E8M0, at::kFloat8_e8m0fnu},
                            std::pair{Dtype::kF8E4M3, at::kFloat8_e4m3fn},
                            std::pair{Dtype::kF8E5M2, at::kFloat8_e5m2},
                            std::pair{Dtype::kI8, at::kChar},
                            std::pair{Dtype::kU8, at::kByte},
                            std::pair{Dtype::kBool, at::kBool}};

std::optional<at::ScalarType> scalar_type_of(Dtype dtype) {
  for (const auto& [disk, memory] : kTypes)
    if (disk == dtype) return memory;
  return std::nullopt;
}

// The host's memory of a tensor that has exactly the bytes that belong in a file.
bool is_plain_memory(const at::Tensor& tensor) {
  return tensor.device().is_cpu() && tensor.is_contiguous() && !tensor.is_conj() &&
         !tensor.is_neg();
}

std::span<std::byte> memory_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

// Calls use(part, first element) for parts of at most `max_elements`, or one row where that is
// more.
template <typename Use>
void for_each_part(const at::Tensor& tensor, int64_t max_elements, Use use) {
  if (tensor.numel() == 0) return;
  const at::Tensor rows = tensor.is_contiguous() ? tensor.view(-1)
                          : tensor.dim() == 0    ? tensor.unsqueeze(0)
                                                 : tensor;
  const int64_t row_elements = rows.numel() / rows.size(0);
  const int64_t step = std::max<int64_t>(1, max_elements / row_elements);
  for (int64_t row = 0; row < rows.size(0); row += step)
    use(rows.narrow(0, row, std::min(step, rows.size(0) - row)), row * row_elements);
}

// Host memory in the shape of `part`, out of `buffer`, which grows to the largest part. `type` may
// differ from the tensor's: the staging holds the file's elements.
at::Tensor staging_for(const at::Tensor& part, at::ScalarType type, at::Tensor& buffer) {
  if (!buffer.defined() || buffer.numel() < part.numel())
    buffer = at::empty({part.numel()}, at::TensorOptions(type).pinned_memory(part.is_cuda()));
  return buffer.narrow(0, 0, part.numel()).view(part.sizes());
}

int64_t staging_elements(const at::Tensor& tensor) {
  return tensor.device().is_cpu() ? kHostStagingElements : kDeviceStagingElements;
}

std::vector<TensorEntry> read_header(const File& file) {
  const std::string name = file.path().string();
  const uint64_t file_bytes = file.size();
  std::string bytes(std::min<uint64_t>(kLengthBytes, file_bytes), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(bytes)));
  bytes.resize(header_length(bytes, file_bytes, name));
  file.read_at(kLengthBytes, std::as_writable_bytes(std::span(bytes)));
  return parse_header(bytes, file_bytes, name);
}

uint64_t file_bytes_of(const Transfer& transfer) {
  return uint64_t(transfer.tensor.numel()) * uint64_t(dtype_bits(transfer.dtype)) / 8;
}

// Transfers [first, last), which lie one after another in a file, and their bytes there.
struct Range {
  size_t first, last;
  uint64_t begin, end;
};

// Sorted transfers, joined up to the size of a transfer: an expert's tensor alone is too small a
// read to keep a disk busy.
std::vector<Range> neighbours_joined(const std::vector<Transfer>& transfers) {
  std::vector<Range> ranges;
  for (size_t i = 0; i < transfers.size(); ++i) {
    const uint64_t begin = transfers[i].offset, end = begin + file_bytes_of(transfers[i]);
    const bool joins = !ranges.empty() && transfers[i].file == transfers[i - 1].file &&
                       begin == ranges.back().end &&
                       end - ranges.back().begin <= uint64_t{kTransferBytes};
    if (!joins) ranges.push_back({i, i, begin, end});
    ranges.back().last = i + 1;
    ranges.back().end = end;
  }
  return ranges;
}

}  // namespace

Dtype dtype_of(at::ScalarType type) {
  for (const auto& [disk, memory] : kTypes)
    if (memory == type) return disk;
  throw ValueError(text("[safetensors] the format has no type for ", at::toString(type)));
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(File::open(path)), tensors_(read_header(file_)) {}

void add_transfers(const File& file, const TensorEntry& entry, const at::Tensor& tensor,
                   std::vector<Transfer>& transfers) {
  const int64_t element_bytes = dtype_bits(entry.dtype) / 8;
  for_each_part(tensor, kTransferBytes / element_bytes, [&](const at::Tensor& part, int64_t first) {
    transfers.push_back({&file, entry.begin + uint64_t(first * element_bytes), entry.dtype, part});
  });
}

void check_convertible(const TensorEntry& entry, at::ScalarType wanted, const std::string& where) {
  const auto type = scalar_type_of(entry.dtype);
  AUTOMOE_CHECK_VALUE(type && at::isFloatingType(*type) == at::isFloatingType(wanted) &&
                          at::isComplexType(*type) == at::isComplexType(wanted),
                      where, " is ", describe(entry), ", which cannot become ",
                      at::toString(wanted), "; a quantised checkpoint must be dequantised first");
}

// NOTE: pread, not a mapping. 1.5 GB into fresh memory, 2 threads: both 1.5 GB/s out of the page
// cache, but off the disk pread keeps 1.2 GB/s and a mapping 0.05, since each fault waits for its
// own few pages.
void read_transfer(const Transfer& transfer) {
  if (transfer.scales) return read_mxfp4(transfer);
  // Bytes other than 0 and 1 are no valid bool; as integers they convert.
  const at::ScalarType type =
      transfer.dtype == Dtype::kBool ? at::kByte : scalar_type_of(transfer.dtype).value();
  const at::Tensor& tensor = transfer.tensor;
  if (tensor.scalar_type() == type && is_plain_memory(tensor))
    return transfer.file->read_at(transfer.offset, memory_of(tensor));
  at::Tensor buffer;
  for_each_part(tensor, staging_elements(tensor), [&](const at::Tensor& part, int64_t first) {
    const at::Tensor staging = staging_for(part, type, buffer);
    transfer.file->read_at(transfer.offset + uint64_t(first) * staging.element_size(),
                           memory_of(staging));
    part.copy_(staging.to(part.device()));  // converted on the device
  });
}

void read_transfers(std::vector<Transfer> transfers, int threads,
                    const std::function<void(uint64_t bytes)>& on_read) {
  std::sort(transfers.begin(), transfers.end(), [](const Transfer& a, const Transfer& b) {
    return std::tie(a.file, a.offset) < std::tie(b.file, b.offset);
  });
  const std::vector<Range> ranges = neighbours_joined(transfers);
  run_jobs(ranges.size(), threads, [&](size_t i) {
    const Range& range = ranges[i];
    transfers[range.first].file->read_ahead(range.begin, range.end - range.begin);
    uint64_t bytes = range.end - range.begin;
    for (size_t j = range.first; j < range.last; ++j) {
      read_transfer(transfers[j]);
      if (transfers[j].scales) bytes += transfers[j].scales->bytes;
    }
    on_read(bytes);
  });
}

void write_transfer(const Transfer& transfer) {
  const at::Tensor& tensor = transfer.tensor;
  if (is_plain_memory(tensor))
    return transfer.file->write_at(
        transfer.offset, {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()});
  at::Tensor buffer;
  for_each_part(tensor, staging_elements(tensor), [&](const at::Tensor& part, int64_t first) {
    const at::Tensor staging = staging_for(part, part.scalar_type(), buffer);
    staging.copy_(part);
    transfer.file->write_at(transfer.offset + uint64_t(first) * staging.element_size(),
                            memory_of(staging));
  });
}

}  // namespace automoe::hub
