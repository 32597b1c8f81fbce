// tutti: looks at the library from outside. `tutti --help` lists the subcommands.
#include <system_error>

#include "base/standard_streams.h"
#include "cli/commands.h"
#include "tutti/tutti.hpp"

int main(int argc, char** argv) {
  tutti::open_standard_streams();
  CLI::App app("Tutti, collective communication: proofs, plans and what this machine offers", "tutti");
  app.set_version_flag("--version", tutti::version());
  app.set_help_all_flag("--help-all", "Of all subcommands");
  app.require_subcommand(1);
  int exit_code = 0;
  tutti::cli::add_verify(app, exit_code);
  tutti::cli::add_plan(app, exit_code);
  tutti::cli::add_info(app, exit_code);
  tutti::cli::add_options(app, exit_code);
  tutti::cli::add_selection(app, exit_code);
  tutti::cli::add_topology(app, exit_code);
  tutti::cli::add_explain(app, exit_code);
  tutti::cli::add_tune(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    exit_code = app.exit(error);
  } catch (const std::system_error&) {
    // fmt throws it where the standard output fails, which end_of_output() finds, too.
  }
  return tutti::end_of_output("tutti", exit_code);
}
