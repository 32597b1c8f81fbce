// The example machines beside this file.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace tutti::topology {

inline std::string machine_path(const std::string& name) {
  return (std::filesystem::path(TUTTI_TEST_MACHINES) / (name + ".json")).string();
}

inline std::string machine_text(const std::string& name) {
  std::ifstream file(machine_path(name));
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace tutti::topology
