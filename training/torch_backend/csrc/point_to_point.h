// Sends and receives of a group, on a communicator of their own.
#pragma once

#include "csrc/work.h"

#include <mutex>

#include "tutti/tutti.hpp"

namespace tutti_torch {

class PointToPoint {
 public:
  PointToPoint(tutti::Communicator communicator, int rank) : communicator_(std::move(communicator)), rank_(rank) {}
  const tutti::Communicator& communicator() const { return communicator_; }
  void abort(const std::string& reason) { communicator_.abort(reason); }

 private:
  std::mutex mutex_;
  tutti::Communicator communicator_;
  int rank_;
};

}  // namespace tutti_torch
