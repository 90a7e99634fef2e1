// libFuzzer target: the four files of a prepared folder out of arbitrary bytes. They are refused
// with a ValueError, or every document can be read.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "automoe/error.h"
#include "train/prepared_data.h"

namespace {

// A copy of its own, aligned for 8-byte elements, so that reading past an end is seen.
struct Part {
  Part(const uint8_t* data, size_t size) : words((size + 7) / 8), size(size) {
    if (size > 0) std::memcpy(words.data(), data, size);
  }
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(words)).first(size); }

  std::vector<uint64_t> words;
  size_t size;
};

}  // namespace

// The first three bytes say where tokens, trained and offsets end; the rest is meta.json. With a
// fourth byte that is even, meta.json is written to fit, so that the checks behind it are reached.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 4) return 0;
  const size_t num_tokens = data[0] % 64, num_documents = data[1] % 16;
  const bool fitting_meta = data[3] % 2 == 0;
  const uint8_t* at = data + 4;
  size_t left = size - 4;
  const auto take = [&](size_t wanted) {
    const size_t count = std::min(wanted, left);
    const Part part(at, count);
    at += count, left -= count;
    return part;
  };
  const Part tokens = take(4 * num_tokens), trained = take(num_tokens);
  const Part offsets = take(8 * (num_documents + 1) + data[2] % 2);
  const std::string meta =
      fitting_meta ? automoe::text(R"({"format": "automoe-data", "version": 1, "tokens": )",
                                   num_tokens, R"(, "documents": )", num_documents,
                                   R"(, "trained_tokens": )", int(data[2]), R"(, "max_document": )",
                                   num_tokens, R"(, "vocab_size": null})")
                   : std::string(reinterpret_cast<const char*>(at), left);
  try {
    const automoe::train::PreparedData read(
        {meta, tokens.bytes(), trained.bytes(), offsets.bytes()}, "x");
    int64_t seen = 0;
    for (int64_t i = 0; i < read.num_documents(); ++i) {
      const auto document = read.document(i);
      if (document.tokens.size() != document.trained.size()) std::abort();
      for (const uint32_t token : document.tokens)
        if (token > read.max_token()) std::abort();
      seen += int64_t(document.tokens.size());
    }
    if (seen != read.num_tokens()) std::abort();
  } catch (const automoe::ValueError&) {
  }
  return 0;
}
