#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "automoe/checkpoint.h"
#include "automoe/error.h"
#include "core/progress.h"
#include "core/text.h"
#include "hub/jobs.h"
#include "hub/mxfp4.h"
#include "hub/name_map.h"
#include "hub/parameters.h"
#include "hub/weights_folder.h"

namespace automoe {
namespace hub {
namespace {

constexpr size_t kNamesInError = 8;

// "3 tensors: 'a', 'b', 'c'"
std::string list_names(const std::vector<std::string>& names) {
  std::string out = text(names.size(), names.size() == 1 ? " tensor: " : " tensors: ");
  for (size_t i = 0; i < std::min(names.size(), kNamesInError); ++i)
    out += text(i == 0 ? "'" : ", '", names[i], "'");
  if (names.size() > kNamesInError) out += text(" and ", names.size() - kNamesInError, " more");
  return out;
}

std::string describe_place(const FileTensor& from) {
  return text("[checkpoint] tensor '", from.entry->name, "' in ", from.file->path().string());
}

// Decides which file tensor fills which part of which parameter, and reads nothing.
class LoadPlan {
 public:
  LoadPlan(const WeightsFolder& folder, const NameMap& names)
      : files_(folder.tensors()), table_(names) {}

  void add(const NamedTensor& parameter);
  /// Throws if the files and the parameters do not fit together; returns the names that `ignore`
  /// allows.
  std::vector<std::string> finish(const std::filesystem::path& folder,
                                  const std::vector<std::string>& ignore) const;

  std::vector<Transfer> transfers() const;
  int64_t num_tensors() const { return int64_t(used_.size()); }
  int64_t num_bytes() const;

 private:
  struct Fill {
    FileTensor from;
    at::Tensor part;
    std::optional<FileTensor> scales = std::nullopt;  // of a quantised tensor
  };

  std::vector<DiskTensor> sources_of(const NamedTensor& parameter);
  /// `name` in the files, now used by `parameter`; nothing, and noted, if it is missing or has
  /// another shape.
  std::optional<FileTensor> take(const std::string& name, const std::vector<int64_t>& shape,
                                 const NamedTensor& parameter);
  void add_plain(const NamedTensor& parameter, const DiskTensor& source);
  void add_mxfp4(const NamedTensor& parameter, const DiskTensor& source);

  const std::map<std::string_view, FileTensor>& files_;
  NameTable table_;
  std::vector<Fill> fills_;
  std::map<std::string_view, std::string_view> used_;  // file tensor -> parameter
  std::vector<std::string> missing_, misfits_;
};

// The file tensors of a parameter; a file that holds it whole, under its own name, will do.
std::vector<DiskTensor> LoadPlan::sources_of(const NamedTensor& parameter) {
  const std::vector<int64_t> shape = parameter.tensor.sizes().vec();
  std::vector<DiskTensor> parts = table_.expand(parameter.name, shape);
  const auto whole = files_.find(parameter.name);
  if (whole == files_.end()) return parts;
  for (const DiskTensor& part : parts) {
    const auto also = files_.find(part.name);
    AUTOMOE_CHECK_VALUE(also == files_.end() || also == whole, "[checkpoint] parameter '",
                        parameter.name, "' would be filled twice: by '", part.name, "' in ",
                        also->second.file_name(), " and by '", parameter.name, "' in ",
                        whole->second.file_name());
  }
  return {{.name = parameter.name, .shape = shape}};
}

void LoadPlan::add(const NamedTensor& parameter) {
  for (const DiskTensor& source : sources_of(parameter)) {
    const bool mxfp4 =
        source.quantised == Quantised::kMxfp4 && files_.contains(mxfp4_blocks_name(source.name));
    mxfp4 ? add_mxfp4(parameter, source) : add_plain(parameter, source);
  }
}

std::optional<FileTensor> LoadPlan::take(const std::string& name, const std::vector<int64_t>& shape,
                                         const NamedTensor& parameter) {
  const auto found = files_.find(name);
  if (found == files_.end()) {
    missing_.push_back(name);
    return std::nullopt;
  }
  const FileTensor& from = found->second;
  const TensorEntry& entry = *from.entry;
  const auto [user, is_new] = used_.emplace(entry.name, parameter.name);
  AUTOMOE_CHECK_VALUE(is_new, "[checkpoint] tensor '", entry.name, "' in ", from.file_name(),
                      " is wanted by two parameters: '", user->second, "' and '", parameter.name,
                      "'");
  if (entry.shape == shape) return from;
  misfits_.push_back(text("'", entry.name, "' in ", from.file_name(), ": expected shape ",
                          shape_text(shape), " for '", parameter.name, "' ",
                          shape_text(parameter.tensor.sizes()), ", found ", describe(entry)));
  return std::nullopt;
}

void LoadPlan::add_plain(const NamedTensor& parameter, const DiskTensor& source) {
  const auto from = take(source.name, source.shape, parameter);
  if (!from) return;
  check_convertible(*from->entry, parameter.tensor.scalar_type(), describe_place(*from));
  fills_.push_back({*from, source.part_of(parameter.tensor.detach())});
}

void LoadPlan::add_mxfp4(const NamedTensor& parameter, const DiskTensor& source) {
  auto shape = mxfp4_scales_shape(source.shape);
  AUTOMOE_CHECK_VALUE(
      shape && parameter.tensor.is_floating_point(), "[checkpoint] '",
      mxfp4_blocks_name(source.name), "' cannot fill '", parameter.name, "' ",
      shape_text(source.shape), " ", at::toString(parameter.tensor.scalar_type()),
      ": MXFP4 needs floating-point numbers in blocks of 32 along the last dim but one");
  const auto scales = take(mxfp4_scales_name(source.name), *shape, parameter);
  shape->push_back(16);
  const auto blocks = take(mxfp4_blocks_name(source.name), *shape, parameter);
  if (!scales || !blocks) return;
  for (const FileTensor& from : {*blocks, *scales})
    AUTOMOE_CHECK_VALUE(from.entry->dtype == Dtype::kU8, describe_place(from), " is ",
                        describe(*from.entry), ", expected U8, as MXFP4 is stored");
  fills_.push_back({*blocks, source.part_of(parameter.tensor.detach()), *scales});
}

std::vector<std::string> LoadPlan::finish(const std::filesystem::path& folder,
                                          const std::vector<std::string>& ignore) const {
  const std::vector<NamePattern> may_stay(ignore.begin(), ignore.end());
  std::vector<std::string> ignored, unexpected;
  for (const auto& [name, from] : files_) {
    if (used_.contains(name)) continue;
    const bool allowed =
        std::any_of(may_stay.begin(), may_stay.end(),
                    [&](const NamePattern& pattern) { return pattern.matches(name); });
    (allowed ? ignored : unexpected).emplace_back(name);
  }
  std::string problems;
  if (!missing_.empty()) {
    problems += text("\n  missing: ", list_names(missing_), ".");
    problems += did_you_mean(
        missing_[0],
        {unexpected.begin(),
         unexpected.begin() + std::min<ptrdiff_t>(1000, ptrdiff_t(unexpected.size()))});
  }
  if (!unexpected.empty())
    problems += text("\n  not used by the model: ", list_names(unexpected), " (in ",
                     files_.at(unexpected[0]).file_name(), ").");
  if (!misfits_.empty()) problems += text("\n  wrong shape: ", misfits_.size(), " tensors");
  for (size_t i = 0; i < std::min(misfits_.size(), kNamesInError); ++i)
    problems += "\n    " + misfits_[i];
  AUTOMOE_CHECK_VALUE(problems.empty(), "[checkpoint] the weights in ", folder.string(),
                      " do not fit the model; is its config.json the right one?", problems);
  return ignored;
}

std::vector<Transfer> LoadPlan::transfers() const {
  std::vector<Transfer> transfers;
  for (const auto& [from, part, scales] : fills_)
    if (scales)
      add_mxfp4_transfers(*from.file, *from.entry, *scales->file, *scales->entry, part, transfers);
    else
      add_transfers(*from.file, *from.entry, part, transfers);
  return transfers;
}

int64_t LoadPlan::num_bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, parameter] : used_) {
    const TensorEntry& entry = *files_.at(name).entry;
    bytes += int64_t(entry.end - entry.begin);
  }
  return bytes;
}

}  // namespace
}  // namespace hub

LoadReport load_checkpoint(const std::filesystem::path& folder, const NameMap& names,
                           const std::vector<NamedTensor>& parameters, const LoadOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  hub::check_parameters(parameters);
  const hub::WeightsFolder files(folder);
  hub::LoadPlan plan(files, names);
  for (const NamedTensor& parameter : parameters) plan.add(parameter);
  LoadReport report{.tensors = plan.num_tensors(),
                    .bytes = plan.num_bytes(),
                    .ignored = plan.finish(folder, options.ignore)};

  hub::synchronize_devices(parameters);
  ByteProgress progress(text("loading ", folder.string()), uint64_t(report.bytes));
  hub::read_transfers(plan.transfers(), hub::num_threads_for(options.threads),
                      [&](uint64_t bytes) { progress.add(bytes); });
  hub::synchronize_devices(parameters);
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace automoe
