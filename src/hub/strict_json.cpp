#include "hub/strict_json.h"

#include <utility>
#include <vector>

#include "automoe/error.h"

namespace automoe::hub {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxDepth = 8;  // a header needs 3, an index 2

// Receives the parser's events and builds the value. nlohmann's own builder keeps the last of two
// equal keys, and its callback form takes quadratic time on large objects.
class Builder {
 public:
  explicit Builder(const std::string& source) : source_(source) {}

  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(int64_t value) { return add(value); }
  bool number_unsigned(uint64_t value) { return add(value); }
  bool number_float(double value, const std::string&) { return add(value); }
  bool string(std::string& value) { return add(std::move(value)); }
  bool binary(std::vector<uint8_t>&) { return false; }
  bool start_object(size_t) { return open(Json::object()); }
  bool start_array(size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(std::string& name) {
    const auto [place, is_new] = stack_.back()->emplace(name, nullptr);
    AUTOMOE_CHECK_VALUE(is_new, source_, " holds '", name, "' twice");
    value_ = &*place;
    return true;
  }

  // NOTE: the parser's own text may quote bytes that are no UTF-8, which Python could not show.
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) {
    throw ValueError(text(source_, " is not valid JSON near its byte ", position));
  }

  Json take() { return std::move(root_); }

 private:
  bool add(Json value) {
    place() = std::move(value);
    return true;
  }

  bool open(Json empty) {
    AUTOMOE_CHECK_VALUE(stack_.size() < kMaxDepth, source_, " is nested deeper than ", kMaxDepth);
    Json& where = place();
    where = std::move(empty);
    stack_.push_back(&where);
    return true;
  }

  bool close() {
    stack_.pop_back();
    return true;
  }

  Json& place() {
    if (stack_.empty()) return root_;
    if (!stack_.back()->is_array()) return *value_;
    stack_.back()->push_back(nullptr);
    return stack_.back()->back();
  }

  const std::string& source_;
  Json root_;
  std::vector<Json*> stack_;  // the open objects and arrays
  Json* value_ = nullptr;     // where the last key's value goes
};

}  // namespace

Json parse_strict_json(std::string_view json, const std::string& source) {
  Builder builder(source);
  Json::sax_parse(json.begin(), json.end(), &builder);
  return builder.take();
}

}  // namespace automoe::hub
