// AUTOMOE_VECTOR_CLONES before a function compiles it for several CPU generations and picks one
// when the library is loaded, so that a portable binary still uses wide vectors.
#pragma once

#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__SANITIZE_ADDRESS__)
#define AUTOMOE_VECTOR_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else  // NOTE: the resolvers run before the address sanitizer is ready
#define AUTOMOE_VECTOR_CLONES
#endif
