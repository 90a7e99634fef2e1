#include "hub/safetensors_header.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <tuple>

#include "automoe/error.h"
#include "core/text.h"
#include "hub/strict_json.h"

namespace automoe::hub {
namespace {

using Json = nlohmann::json;

struct DtypeRow {
  std::string_view name;
  int bits;
};
constexpr std::array kDtypes{
    DtypeRow{"U64", 64},        DtypeRow{"I64", 64},    DtypeRow{"F64", 64},
    DtypeRow{"C64", 64},        DtypeRow{"F32", 32},    DtypeRow{"U32", 32},
    DtypeRow{"I32", 32},        DtypeRow{"BF16", 16},   DtypeRow{"F16", 16},
    DtypeRow{"U16", 16},        DtypeRow{"I16", 16},    DtypeRow{"F8_E5M2FNUZ", 8},
    DtypeRow{"F8_E4M3FNUZ", 8}, DtypeRow{"F8_E8M0", 8}, DtypeRow{"F8_E4M3", 8},
    DtypeRow{"F8_E5M2", 8},     DtypeRow{"I8", 8},      DtypeRow{"U8", 8},
    DtypeRow{"F6_E3M2", 6},     DtypeRow{"F6_E2M3", 6}, DtypeRow{"F4", 4},
    DtypeRow{"BOOL", 8}};
static_assert(kDtypes.size() == size_t(Dtype::kBool) + 1);

constexpr uint64_t kMaxLength = 100'000'000;  // the safetensors library's own limit
constexpr std::string_view kMetadata = "__metadata__";

std::string at_tensor(const std::string& file, const std::string& name) {
  return text("[safetensors] ", file, ": tensor '", name, "'");
}

// The value of a key that must be there. `what` says what kind of value is right.
const Json& require_key(const Json& entry, const char* key, const char* what,
                        const std::string& where) {
  const auto found = entry.find(key);
  AUTOMOE_CHECK_VALUE(found != entry.end(), where, " has no '", key, "'; expected ", what);
  return *found;
}

std::vector<int64_t> read_counts(const Json& list, const char* key, const std::string& where) {
  AUTOMOE_CHECK_VALUE(list.is_array(), where, ": '", key, "' must be a list of sizes, found ",
                      list.type_name());
  std::vector<int64_t> counts;
  counts.reserve(list.size());
  for (const Json& item : list) {
    AUTOMOE_CHECK_VALUE(item.is_number_unsigned() && item.get<uint64_t>() <= uint64_t(INT64_MAX),
                        where, ": '", key, "' must hold sizes, found ", item.dump(-1, ' ', true));
    counts.push_back(item.get<int64_t>());
  }
  return counts;
}

TensorEntry read_entry(const std::string& name, const Json& json, uint64_t data_begin,
                       const std::string& file) {
  const std::string where = at_tensor(file, name);
  AUTOMOE_CHECK_VALUE(json.is_object(), where, " must be described by an object, found ",
                      json.type_name());
  const Json& dtype = require_key(json, "dtype", "an element type such as BF16", where);
  const auto known =
      dtype.is_string() ? dtype_from(dtype.get_ref<const std::string&>()) : std::optional<Dtype>();
  AUTOMOE_CHECK_VALUE(known, where, " has an unknown dtype ", dtype.dump(-1, ' ', true));
  TensorEntry entry{
      name, *known,
      read_counts(require_key(json, "shape", "a list of sizes", where), "shape", where)};
  const auto offsets =
      read_counts(require_key(json, "data_offsets", "[begin, end]", where), "data_offsets", where);
  AUTOMOE_CHECK_VALUE(offsets.size() == 2 && offsets[0] <= offsets[1], where,
                      ": data_offsets must be [begin, end], found ",
                      offsets.size() == 2 ? shape_text(offsets) : text(offsets.size(), " numbers"));
  const auto bytes = tensor_bytes(entry.dtype, entry.shape);
  AUTOMOE_CHECK_VALUE(bytes, where, ": ", describe(entry),
                      " is no whole number of bytes, or more than any file holds");
  AUTOMOE_CHECK_VALUE(uint64_t(offsets[1] - offsets[0]) == *bytes, where, ": ", describe(entry),
                      " takes ", *bytes, " bytes, but data_offsets ", shape_text(offsets), " span ",
                      offsets[1] - offsets[0]);
  entry.begin = data_begin + uint64_t(offsets[0]);
  entry.end = data_begin + uint64_t(offsets[1]);
  return entry;
}

void check_metadata(const Json& metadata, const std::string& file) {
  AUTOMOE_CHECK_VALUE(
      metadata.is_object() && std::all_of(metadata.begin(), metadata.end(),
                                          [](const Json& v) { return v.is_string(); }),
      "[safetensors] ", file, ": ", kMetadata, " must map text to text");
}

// The ranges, sorted, must follow one another from the header's end to the file's end.
void check_cover(const std::vector<TensorEntry>& tensors, uint64_t data_begin, uint64_t file_bytes,
                 const std::string& file) {
  uint64_t at = data_begin;
  for (const TensorEntry& tensor : tensors) {
    AUTOMOE_CHECK_VALUE(
        tensor.begin == at, at_tensor(file, tensor.name), " begins at byte ", tensor.begin,
        " of the file, expected ", at,
        tensor.begin < at ? ": it overlaps another tensor" : ": a gap lies before it");
    at = tensor.end;
    AUTOMOE_CHECK_VALUE(at <= file_bytes, at_tensor(file, tensor.name), " ends at byte ", at,
                        ", but the file ends at byte ", file_bytes,
                        ": it is truncated; fetch or copy it again");
  }
  AUTOMOE_CHECK_VALUE(at == file_bytes, "[safetensors] ", file, ": the tensors end at byte ", at,
                      ", but the file has ", file_bytes, " bytes");
}

// Empty tensors may share a place: among these, the order in which lay_out() puts them.
bool in_file_order(const TensorEntry& a, const TensorEntry& b) {
  return std::tie(a.begin, a.end, a.dtype, a.name) < std::tie(b.begin, b.end, b.dtype, b.name);
}

}  // namespace

std::string_view dtype_name(Dtype dtype) { return kDtypes[size_t(dtype)].name; }

int dtype_bits(Dtype dtype) { return kDtypes[size_t(dtype)].bits; }

std::optional<Dtype> dtype_from(std::string_view name) {
  for (size_t i = 0; i < kDtypes.size(); ++i)
    if (kDtypes[i].name == name) return Dtype(i);
  return std::nullopt;
}

std::string describe(const TensorEntry& tensor) {
  return text(dtype_name(tensor.dtype), " ", shape_text(tensor.shape));
}

std::optional<uint64_t> tensor_bytes(Dtype dtype, const std::vector<int64_t>& shape) {
  int64_t bits = dtype_bits(dtype);
  for (const int64_t size : shape)
    if (__builtin_mul_overflow(bits, size, &bits)) return std::nullopt;
  if (bits % 8 != 0) return std::nullopt;
  return uint64_t(bits) / 8;
}

uint64_t header_length(std::string_view first_bytes, uint64_t file_bytes, const std::string& file) {
  AUTOMOE_CHECK_VALUE(first_bytes.size() >= kLengthBytes && file_bytes >= kLengthBytes,
                      "[safetensors] ", file, " has ", file_bytes,
                      " bytes, too few for a header: it is truncated; fetch or copy it again");
  AUTOMOE_CHECK_VALUE(!first_bytes.starts_with("version "), "[safetensors] ", file,
                      " is a Git LFS pointer, not the weights; run `git lfs pull` in its folder");
  uint64_t length = 0;
  for (size_t i = kLengthBytes; i-- > 0;) length = length << 8 | uint8_t(first_bytes[i]);
  AUTOMOE_CHECK_VALUE(length <= kMaxLength, "[safetensors] ", file, ": a header of ", length,
                      " bytes, expected at most ", kMaxLength,
                      ": this is no safetensors file, or a damaged one");
  AUTOMOE_CHECK_VALUE(length <= file_bytes - kLengthBytes, "[safetensors] ", file,
                      ": the header takes ", length, " bytes, but the file has ", file_bytes,
                      ": it is truncated; fetch or copy it again");
  return length;
}

std::vector<TensorEntry> parse_header(std::string_view json, uint64_t file_bytes,
                                      const std::string& file) {
  const std::string where = text("[safetensors] ", file, ": the header");
  AUTOMOE_CHECK_VALUE(json.starts_with('{'), where, " must begin with '{'");
  const Json header = parse_strict_json(json, where);
  const uint64_t data_begin = kLengthBytes + json.size();
  std::vector<TensorEntry> tensors;
  tensors.reserve(header.size());
  for (const auto& [name, value] : header.items()) {
    if (name == kMetadata)
      check_metadata(value, file);
    else
      tensors.push_back(read_entry(name, value, data_begin, file));
  }
  std::sort(tensors.begin(), tensors.end(), in_file_order);
  check_cover(tensors, data_begin, file_bytes, file);
  return tensors;
}

std::string lay_out(std::vector<TensorEntry>& tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.dtype, a.name) < std::tie(b.dtype, b.name);
  });
  std::string json = R"({"__metadata__":{"format":"pt"})";
  uint64_t at = 0;
  for (TensorEntry& tensor : tensors) {
    const auto bytes = tensor_bytes(tensor.dtype, tensor.shape);
    AUTOMOE_CHECK(bytes, "[safetensors] '", tensor.name, "': ", describe(tensor),
                  " has no byte size");
    tensor.begin = at;
    tensor.end = at += *bytes;
    json += text(",", Json(tensor.name).dump(), ":{\"dtype\":\"", dtype_name(tensor.dtype),
                 "\",\"shape\":", Json(tensor.shape).dump(),
                 ",\"data_offsets\":", Json{tensor.begin, tensor.end}.dump(), "}");
  }
  json += '}';
  json.append((8 - json.size() % 8) % 8, ' ');
  std::string header(kLengthBytes, '\0');
  for (size_t i = 0; i < kLengthBytes; ++i) header[i] = char(uint64_t(json.size()) >> (8 * i));
  header += json;
  for (TensorEntry& tensor : tensors) {
    tensor.begin += header.size();
    tensor.end += header.size();
  }
  return header;
}

}  // namespace automoe::hub
