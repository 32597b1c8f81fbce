// For tests: registers memory of devices, which no NIC of a test machine can.
#pragma once

#include "transport/verbs/library.h"

namespace tutti::transport::verbs {

/// From now on this function registers memory of devices. REQUIRES: library().ok(), and none is being registered.
void set_reg_dmabuf_for_tests(Library::RegDmabufMr function);

}  // namespace tutti::transport::verbs
