// In place of training.cc in a build without LibTorch.
#include "tests/chaos/ranks.h"

namespace tutti::chaos {

bool can_train() { return false; }
void prepare_training() {}
void train(const Scenario&, Communicator, Report&) {}

}  // namespace tutti::chaos
