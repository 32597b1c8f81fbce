// The fast bodies behind reduce.h: the same loops compiled once per instruction set, chosen at run time.
//
// For reduce.cc, the tests and the benchmark, which run every body that the machine can; other code calls reduce.h.
#pragma once

#include <cstddef>
#include <span>

#include "collectives/reduce/body_table.h"
#include "collectives/reduce/reduce.h"

namespace tutti::reduce {

/// The body named "avx512", "avx2" or "generic"; null where the machine or the build lacks it.
const Body* body(const char* isa);

/// reduce() and copy() of reduce.h, through the given body.
void reduce_with(const Body& body, const Spec& spec, std::span<void* const> dsts, std::span<const void* const> srcs,
                 std::size_t count, bool streaming);
void copy_with(const Body& body, std::span<void* const> dsts, const void* src, std::size_t bytes, bool streaming);

}  // namespace tutti::reduce
