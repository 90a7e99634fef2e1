// Which documents share a row, and in which order an epoch visits the rows. Needs no Torch header.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace automoe::train {

/// Rows of whole documents.
struct Rows {
  std::vector<int64_t> documents;     // document indices, row after row
  std::vector<int64_t> begins = {0};  // [rows + 1]: where each row begins in `documents`

  int64_t count() const { return int64_t(begins.size()) - 1; }
  std::span<const int64_t> row(int64_t index) const {
    return std::span(documents).subspan(size_t(begins[index]),
                                        size_t(begins[index + 1] - begins[index]));
  }
};

/// Best fit decreasing: each document, longest first, goes to the row with the least room that
/// still holds it. Depends on the lengths alone. Documents must fit: see require_fit.
Rows pack_documents(std::span<const int64_t> lengths, int64_t max_length);

Rows one_document_per_row(int64_t num_documents);

/// Throws ValueError naming the longest document and the remedy if one is longer than max_length.
void require_fit(std::span<const int64_t> lengths, int64_t max_length,
                 const std::string& data_name);

/// Used share of the rows' room, in [0, 1].
double fill_ratio(const Rows& rows, std::span<const int64_t> lengths, int64_t max_length);

/// A permutation of 0..count-1; a pure function of its arguments.
std::vector<int64_t> epoch_order(int64_t count, uint64_t seed, int64_t epoch);

}  // namespace automoe::train
