#include "blocks/rope.h"

#include <cmath>
#include <numbers>

namespace automoe::blocks {
namespace {

struct Frequencies {
  Tensor inverse;  // [d/2] fp32
  double attention_factor = 1;
};

// theta^(-2i/d), computed as Transformers does: powers in fp32.
Tensor powers(double theta, int64_t width, int64_t count) {
  const Tensor exponents =
      at::arange(0, 2 * count, 2, at::kLong).to(at::kFloat) / static_cast<double>(width);
  return at::pow(theta, exponents);
}

int64_t rotated_width(const Json& rope, int64_t head_dim) {
  return static_cast<int64_t>(head_dim * value_or<double>(rope, "partial_rotary_factor", 1.0));
}

// How much YaRN sharpens attention for a stretch.
double sharpness(double stretch, double mscale) {
  return stretch <= 1 ? 1.0 : 0.1 * mscale * std::log(stretch) + 1.0;
}

// Peng et al. 2023 (arXiv 2309.00071).
Frequencies yarn(const Json& rope, double theta, int64_t width, int64_t max_positions) {
  const double original = require<double>(rope, "original_max_position_embeddings");
  const double factor = value_or<double>(rope, "factor", max_positions / original);
  const double mscale = value_or<double>(rope, "mscale", 0),
               all_dim = value_or<double>(rope, "mscale_all_dim", 0);
  const double inferred = mscale != 0 && all_dim != 0
                              ? sharpness(factor, mscale) / sharpness(factor, all_dim)
                              : sharpness(factor, 1);
  const auto correction = [&](double rotations) {
    return width * std::log(original / (rotations * 2 * std::numbers::pi)) / (2 * std::log(theta));
  };
  const auto or_default = [&](const char* key, double fallback) {
    const double given = value_or<double>(rope, key, 0);
    return given == 0 ? fallback : given;
  };
  double low = correction(or_default("beta_fast", 32)),
         high = correction(or_default("beta_slow", 1));
  if (value_or<bool>(rope, "truncate", true)) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(width - 1));
  if (low == high) high += 0.001;
  const Tensor ramp = ((at::arange(width / 2, at::kFloat) - low) / (high - low)).clamp(0, 1);
  const Tensor base = powers(theta, width, width / 2), keep = 1 - ramp;
  return {at::reciprocal(factor * base) * (1 - keep) + at::reciprocal(base) * keep,
          value_or<double>(rope, "attention_factor", inferred)};
}

// Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, smooth in between.
Frequencies llama3(const Json& rope, double theta, int64_t width) {
  const double factor = require<double>(rope, "factor"),
               low = require<double>(rope, "low_freq_factor");
  const double high = require<double>(rope, "high_freq_factor");
  const double original = require<double>(rope, "original_max_position_embeddings");
  const Tensor inverse = at::reciprocal(powers(theta, width, width / 2));
  const Tensor wavelength = 2 * std::numbers::pi / inverse;
  const Tensor is_long = wavelength > original / low, is_short = wavelength < original / high;
  const Tensor stretched = at::where(is_long, inverse / factor, inverse);
  const Tensor smooth = (original / wavelength - low) / (high - low);
  const Tensor between = (1 - smooth) * stretched / factor + smooth * stretched;
  return {at::where(is_long.logical_or(is_short), stretched, between), 1};
}

// Ding et al. 2024 (arXiv 2402.13753): one list of factors up to the original length, another
// beyond.
Frequencies longrope(const Json& rope, double theta, int64_t width, int64_t max_positions,
                     int64_t length) {
  const double original = require<double>(rope, "original_max_position_embeddings");
  const double factor = value_or<double>(rope, "factor", max_positions / original);
  const double inferred = factor <= 1 ? 1.0 : std::sqrt(1 + std::log(factor) / std::log(original));
  const auto factors =
      require<std::vector<double>>(rope, length > original ? "long_factor" : "short_factor");
  AUTOMOE_CHECK_VALUE(static_cast<int64_t>(factors.size()) == width / 2, "[rope] longrope needs ",
                      width / 2, " factors, got ", factors.size());
  return {at::reciprocal(at::tensor(factors, at::kFloat) * powers(theta, width, width / 2)),
          value_or<double>(rope, "attention_factor", inferred)};
}

Frequencies frequencies(const Json& rope, int64_t head_dim, int64_t max_positions, int64_t length) {
  const std::string type = value_or<std::string>(rope, "rope_type", "default");
  double theta = require<double>(rope, "rope_theta");
  const int64_t width = rotated_width(rope, head_dim);
  if (type == "default") return {at::reciprocal(powers(theta, width, width / 2)), 1};
  if (type == "linear")
    return {at::reciprocal(powers(theta, width, width / 2)) / require<double>(rope, "factor"), 1};
  if (type == "dynamic") {  // NTK: the base grows with the length beyond max_positions
    const double factor = require<double>(rope, "factor");
    const double longest = static_cast<double>(std::max(length, max_positions));
    const double stretch = factor * longest / max_positions - (factor - 1);
    theta *= std::pow(stretch, static_cast<double>(width) / (width - 2));
    return {at::reciprocal(powers(theta, width, width / 2)), 1};
  }
  if (type == "yarn") return yarn(rope, theta, width, max_positions);
  if (type == "llama3") return llama3(rope, theta, width);
  if (type == "longrope") return longrope(rope, theta, width, max_positions, length);
  if (type ==
      "proportional") {  // the share that rotates, then zeros: the table spans the whole head
    const int64_t angles = width / 2;
    const Tensor rotated = at::reciprocal(powers(theta, head_dim, angles));
    return {at::cat({rotated, at::zeros({head_dim / 2 - angles})}) /
                value_or<double>(rope, "factor", 1.0),
            1};
  }
  throw ValueError(text("[rope] rope_type '", type,
                        "' is not known; choose one of default, linear, dynamic, "
                        "yarn, llama3, longrope, proportional"));
}

}  // namespace

Rope::Rope(const Json& rope, int64_t head_dim, int64_t max_positions)
    : rope_(rope), head_dim_(head_dim), max_positions_(max_positions) {
  const std::string type = value_or<std::string>(rope, "rope_type", "default");
  length_dependent_ = type == "dynamic" || type == "longrope";
  const Frequencies found = frequencies(rope, head_dim, max_positions, /*length=*/0);
  inverse_frequencies_ = found.inverse;
  attention_factor_ = found.attention_factor;
}

RopeTables Rope::tables(const Tensor& positions, at::ScalarType dtype) const {
  Tensor inverse = inverse_frequencies_;
  double factor = attention_factor_;
  if (length_dependent_) {
    const Frequencies found =
        frequencies(rope_, head_dim_, max_positions_, positions.max().item<int64_t>() + 1);
    inverse = found.inverse;
    factor = found.attention_factor;
  }
  const Tensor angles =
      positions.to(at::kFloat).unsqueeze(1) * inverse.to(positions.device()).unsqueeze(0);
  return {(angles.cos() * factor).to(dtype), (angles.sin() * factor).to(dtype)};
}

double softmax_factor(const Json& rope) {
  const double mscale = value_or<double>(rope, "mscale_all_dim", 0);
  if (value_or<std::string>(rope, "rope_type", "default") == "default" || mscale == 0) return 1;
  const double one_side = sharpness(require<double>(rope, "factor"), mscale);
  return one_side * one_side;
}

Json rope_parameters(const Json& config, double default_theta) {
  Json rope = Json::object();
  for (const char* key : {"rope_parameters", "rope_scaling"})
    if (config.contains(key) && config[key].is_object()) rope.update(config[key]);
  if (!rope.contains("rope_type"))
    rope["rope_type"] = value_or<std::string>(rope, "type", "default");
  if (!rope.contains("rope_theta") || rope["rope_theta"].is_null())
    rope["rope_theta"] = value_or<double>(config, "rope_theta", default_theta);
  const auto from_top = [&](const char* key, bool top_wins) {
    if (config.contains(key) && !config[key].is_null() && (top_wins || !rope.contains(key)))
      rope[key] = config[key];
  };
  from_top("partial_rotary_factor", false);
  from_top("original_max_position_embeddings", true);
  if (!rope.contains("original_max_position_embeddings") &&
      config.contains("max_position_embeddings"))
    rope["original_max_position_embeddings"] = config["max_position_embeddings"];
  return rope;
}

}  // namespace automoe::blocks
