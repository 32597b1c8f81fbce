// --file=NAME of a test program: only the tests that NAME_test.cc defines, so that one program serves a whole folder
// and each file is still a test of its own for ctest.
#pragma once

#include <string>

namespace tutti::testing {

/// Takes --file=NAME out of the arguments that GoogleTest has left, and narrows its filter to that file's tests that
/// --gtest_filter lets through. Returns what is wrong, or nothing: an argument that is not known, or a file without
/// tests. REQUIRES: ::testing::InitGoogleTest() has run.
std::string narrow_to_file(int argc, char** argv);

}  // namespace tutti::testing
