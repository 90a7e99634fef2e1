#include "kernels/documents.h"

#include "automoe/error.h"

namespace automoe::kernels {

Documents Documents::from_ends(std::vector<int64_t> ends, at::Device device) {
  Documents out;
  std::vector<int32_t> offsets{0};
  out.equal = true;
  for (int64_t begin = 0; const int64_t end : ends) {
    AUTOMOE_CHECK_VALUE(end > begin, "[documents] ends must ascend strictly, got ", end, " after ",
                        begin);
    AUTOMOE_CHECK_VALUE(end <= INT32_MAX, "[documents] at most 2^31 - 1 tokens expected, got ",
                        end);
    if (out.longest != 0 && end - begin != out.longest) out.equal = false;
    out.longest = std::max(out.longest, end - begin);
    offsets.push_back(static_cast<int32_t>(end));
    begin = end;
  }
  out.ends = std::move(ends);
  out.offsets = at::tensor(offsets, at::kInt).to(device);
  return out;
}

}  // namespace automoe::kernels
