// Words that a strategy adds to a mismatch of calls: what it may come from, or where this rank was.
#pragma once

#include <string>
#include <utility>

#include "tutti/tutti.hpp"

namespace tutti::training {

/// Runs `step` and returns what it returns. The sentence of a mismatch that it throws becomes words(sentence).
template <class Words, class Step>
auto with_words_of_mismatch(Words&& words, Step&& step) {
  try {
    return step();
  } catch (const Error& error) {
    if (error.code() != Code::mismatch) throw;
    throw Error(error.code(), words(std::string(error.what())));
  }
}

}  // namespace tutti::training
