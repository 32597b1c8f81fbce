// What is asked of the CUDA driver, of one that is not there: see fake_cuda.cc, which this program is linked to.
#include <cstring>
#include <vector>

#include "tests/nccl/ranks.h"

extern "C" {
extern char fake_device_memory[256];
extern int fake_copies;
extern int fake_failure;
void fake_set_device(int device);
}

namespace tutti::nccl::testing::device_test {
namespace {

TEST(Device, CommunicatorsBelongToTheCurrentOne) {
  ncclUniqueId id;
  EXPECT_DONE(ncclGetUniqueId(&id));
  ncclComm_t comm = nullptr;
  fake_set_device(3);
  EXPECT_DONE(ncclCommInitRank(&comm, 1, id, 0));
  int device = -1;
  EXPECT_DONE(ncclCommCuDevice(comm, &device));
  EXPECT_EQ(device, 3);
  EXPECT_DONE(ncclCommDestroy(comm));
}

TEST(Device, AScalarInItsMemoryIsReadWhenTheCallRuns) {
  const std::vector<ncclComm_t> comms = init_all(1);
  float before = 2;
  std::memcpy(fake_device_memory, &before, sizeof before);
  ncclRedOp_t op{};
  EXPECT_DONE(ncclRedOpCreatePreMulSum(&op, fake_device_memory, ncclFloat32, ncclScalarDevice, comms[0]));
  EXPECT_EQ(fake_copies, 0);
  float after = 5;
  std::memcpy(fake_device_memory, &after, sizeof after);
  float x = 3;
  float y = 0;
  EXPECT_DONE(ncclAllReduce(&x, &y, 1, ncclFloat32, op, comms[0], nullptr));
  EXPECT_EQ(y, 15);
  EXPECT_EQ(fake_copies, 1);
  fake_failure = 900;  // CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
  EXPECT_NCCL(ncclAllReduce(&x, &y, 1, ncclFloat32, op, comms[0], nullptr), ncclSystemError,
              HasSubstr("could not be read (CUDA error 900)"));
  fake_failure = 0;
  EXPECT_DONE(ncclRedOpDestroy(op, comms[0]));
  EXPECT_DONE(ncclCommDestroy(comms[0]));
}

}  // namespace
}  // namespace tutti::nccl::testing::device_test
