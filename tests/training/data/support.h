// Files that vanish with the test, sentences of errors, and mutations of files, for the tests of training/data.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "training/data/random.h"
#include "tutti/tutti.hpp"

namespace tutti::training {

/// A folder of the test's own.
class TempFolder {
 public:
  TempFolder() {
    std::string name = ::testing::TempDir() + "tutti_data_XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    folder_ = name;
  }
  ~TempFolder() { std::filesystem::remove_all(folder_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  std::string operator/(const std::string& name) const { return folder_ + "/" + name; }
  const std::string& path() const { return folder_; }

 private:
  std::string folder_;
};

inline std::vector<std::uint8_t> bytes_of_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_bytes(const std::string& path, const std::vector<std::uint8_t>& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

/// The sentence with which `body` fails; empty when it does not. Anything but tutti::Error passes through.
inline std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// Cut, grown, or with some bytes changed (more often in the first 1100, where headers are).
inline std::vector<std::uint8_t> mutated(std::vector<std::uint8_t> bytes, Random& random) {
  switch (random.below(3)) {
    case 0: bytes.resize(random.below(bytes.size())); return bytes;
    case 1: bytes.resize(bytes.size() + 1 + random.below(2000)); return bytes;
    default: break;
  }
  for (std::uint64_t changes = 1 + random.below(4); changes > 0; --changes) {
    const std::uint64_t range = random.below(2) == 0 ? 16 : std::min<std::uint64_t>(bytes.size(), 1100);
    bytes[random.below(std::min<std::uint64_t>(range, bytes.size()))] = static_cast<std::uint8_t>(random.next());
  }
  return bytes;
}

}  // namespace tutti::training
