// Random numbers as a pure function of a counter: the same on every platform, and nothing to save
// on resume. Needs no Torch header; device code may call mix().
#pragma once

#include <cstdint>

namespace automoe {

/// SplitMix64's finaliser: a bijection whose outputs look independent.
constexpr uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

/// The `counter`-th number of the stream that `key` names, in [0, bound).
inline uint64_t random_below(uint64_t key, uint64_t counter, uint64_t bound) {
  __extension__ using Wide = unsigned __int128;
  return uint64_t((Wide(mix(key ^ mix(counter))) * bound) >> 64);  // bias below bound / 2^64
}

}  // namespace automoe
