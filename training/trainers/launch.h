// How the trainers start their ranks on this machine.
#pragma once

#include <string>

namespace tutti::training {

/// Torch threads of each rank: `asked`, or with 0 its share of the cores.
int threads_of_each(int asked, int ranks);

/// Whether `program` starts the ranks that --ranks asks for (0: it was not given), or is one already. Errors:
/// tutti::Error, where another launcher has started it as one of several.
bool starts_ranks_of(const char* program, int ranks);

/// Runs this very command line as `ranks` local processes with that many torch threads each. Returns the exit status.
int launch_ranks(int ranks, const std::string& backend, int threads, int argc, char** argv);

}  // namespace tutti::training
