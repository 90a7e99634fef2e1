#include "train/packing.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "automoe/error.h"
#include "core/mix.h"

namespace automoe::train {
namespace {

// Open rows by the room they have left.
class OpenRows {
 public:
  explicit OpenRows(int64_t max_length) : by_room_(size_t(max_length) + 1) {}

  void add(int64_t row, int64_t room) {
    if (room == 0) return;
    if (by_room_[room].empty()) rooms_.insert(room);
    by_room_[room].push_back(row);
  }

  // Takes out a row with the least room >= length; {-1, 0} if there is none.
  std::pair<int64_t, int64_t> take(int64_t length) {
    const auto found = rooms_.lower_bound(length);
    if (found == rooms_.end()) return {-1, 0};
    const int64_t room = *found;
    const int64_t row = by_room_[room].back();
    by_room_[room].pop_back();
    if (by_room_[room].empty()) rooms_.erase(found);
    return {row, room};
  }

 private:
  std::vector<std::vector<int64_t>> by_room_;
  std::set<int64_t> rooms_;  // those with a row
};

}  // namespace

Rows pack_documents(std::span<const int64_t> lengths, int64_t max_length) {
  std::vector<int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return lengths[a] > lengths[b]; });

  OpenRows open(max_length);
  std::vector<int64_t> row_of(lengths.size());
  int64_t num_rows = 0;
  for (const int64_t document : order) {
    auto [row, room] = open.take(lengths[document]);
    if (row < 0) row = num_rows++, room = max_length;
    row_of[document] = row;
    open.add(row, room - lengths[document]);
  }

  Rows rows;
  rows.begins.assign(size_t(num_rows) + 1, 0);
  for (const int64_t row : row_of) ++rows.begins[row + 1];
  std::partial_sum(rows.begins.begin(), rows.begins.end(), rows.begins.begin());
  rows.documents.resize(lengths.size());
  std::vector<int64_t> next(rows.begins.begin(), rows.begins.end() - 1);
  for (size_t document = 0; document < lengths.size(); ++document)  // in file order inside a row
    rows.documents[next[row_of[document]]++] = int64_t(document);
  return rows;
}

Rows one_document_per_row(int64_t num_documents) {
  Rows rows;
  rows.documents.resize(size_t(num_documents));
  std::iota(rows.documents.begin(), rows.documents.end(), int64_t{0});
  rows.begins.resize(size_t(num_documents) + 1);
  std::iota(rows.begins.begin(), rows.begins.end(), int64_t{0});
  return rows;
}

void require_fit(std::span<const int64_t> lengths, int64_t max_length,
                 const std::string& data_name) {
  const auto longest = std::max_element(lengths.begin(), lengths.end());
  if (longest == lengths.end() || *longest <= max_length) return;
  const auto too_long =
      std::count_if(lengths.begin(), lengths.end(), [&](int64_t n) { return n > max_length; });
  throw ValueError(text("[data] ", data_name, ": document ", longest - lengths.begin(), " has ",
                        *longest, " tokens, more than max_length = ", max_length, " (", too_long,
                        " of ", lengths.size(), " documents are too long); set max_length to ",
                        *longest, ", or prepare the data again with a lower length limit"));
}

double fill_ratio(const Rows& rows, std::span<const int64_t> lengths, int64_t max_length) {
  const int64_t used = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  return double(used) / (double(rows.count()) * double(max_length));
}

std::vector<int64_t> epoch_order(int64_t count, uint64_t seed, int64_t epoch) {
  std::vector<int64_t> order(size_t(std::max<int64_t>(count, 0)));
  std::iota(order.begin(), order.end(), int64_t{0});
  const uint64_t key = mix(mix(seed) ^ uint64_t(epoch));
  for (size_t left = order.size(); left > 1; --left)  // Fisher and Yates
    std::swap(order[left - 1], order[random_below(key, left, left)]);
  return order;
}

}  // namespace automoe::train
