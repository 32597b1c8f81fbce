// In place of training.cc in a build without LibTorch.
#include "tests/chaos/ranks.h"

namespace tutti::chaos {

bool can_train() { return false; }
void train(const Scenario&, Communicator, Report&) {}

}  // namespace tutti::chaos
