// The subcommands of the `tutti` program: one file each, one line here, one line in main.cc.
#pragma once

#include <CLI/CLI.hpp>

namespace tutti::cli {

// Each adds its subcommand to `app`. When the user calls for it, it does its work and sets `exit_code`.
void add_verify(CLI::App& app, int& exit_code);
void add_plan(CLI::App& app, int& exit_code);
void add_info(CLI::App& app, int& exit_code);
void add_options(CLI::App& app, int& exit_code);
void add_selection(CLI::App& app, int& exit_code);
void add_topology(CLI::App& app, int& exit_code);
void add_explain(CLI::App& app, int& exit_code);
void add_tune(CLI::App& app, int& exit_code);

}  // namespace tutti::cli
