// Where communicators come from: the environment of a launcher, a unique id, or threads of this process.
#pragma once

#include <memory>
#include <vector>

#include "collectives/communicator_interface.h"

namespace tutti {

Result<std::shared_ptr<CommunicatorInterface>> create_from_environment(const Options& options);
Result<UniqueId> create_unique_id();
/// Closes the socket of an id that this process has made and that no communicator has used. Others: nothing happens.
void forget_unique_id(const UniqueId& id);
Result<std::shared_ptr<CommunicatorInterface>> create_from_unique_id(const UniqueId& id, int rank, int size,
                                                                     const Options& options);
Result<std::vector<std::shared_ptr<CommunicatorInterface>>> create_in_process(int size, const Options& options);

}  // namespace tutti
