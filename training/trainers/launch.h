// How the trainers start their ranks on this machine.
#pragma once

#include <string>

namespace tutti::training {

/// Torch threads of each rank: `asked`, or with 0 its share of the cores.
int threads_of_each(int asked, int ranks);

/// Runs this very command line as `ranks` local processes with that many torch threads each. Returns the exit status.
int launch_ranks(int ranks, const std::string& backend, int threads, int argc, char** argv);

}  // namespace tutti::training
