// tutti options: the one table of all options, with what is in force here.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/options.h"
#include "cli/commands.h"

namespace tutti::cli {
namespace {

std::string shown(const std::string& value) { return value.empty() ? "(empty)" : value; }

void print_table(const std::vector<options::Row>& rows) {
  fmt::print("  {:<22} {:<9} {:<10} {:<18} {}\n", "name", "type", "default", "unit", "value in force (* changed)");
  for (const options::Row& row : rows) {
    fmt::print("{} {:<22} {:<9} {:<10} {:<18} {}\n    {}\n", row.changed ? '*' : ' ', row.name, name_of(row.type),
               shown(row.default_value), row.unit, shown(row.value), row.help);
  }
}

void print_json(const std::vector<options::Row>& rows) {
  auto all = nlohmann::ordered_json::array();
  for (const options::Row& row : rows) {
    all.push_back({{"name", row.name},
                   {"type", name_of(row.type)},
                   {"default", row.default_value},
                   {"unit", row.unit},
                   {"help", row.help},
                   {"value", row.value},
                   {"changed", row.changed}});
  }
  fmt::print("{}\n", all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace

void add_options(CLI::App& app, int& exit_code) {
  auto json = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("options", "All options: name, type, default, help, and the value in force");
  command->add_flag("--json", *json, "as JSON");
  command->callback([json, &exit_code] {
    *json ? print_json(options::all()) : print_table(options::all());
    if (const Status status = options::check(); !status.ok()) {
      fmt::print(stderr, "tutti options: {}\n", status.message());
      exit_code = 2;
    }
  });
}

}  // namespace tutti::cli
