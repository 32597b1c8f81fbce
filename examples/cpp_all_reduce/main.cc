// Every rank gives the numbers rank + 0, rank + 1, ...; all ranks get their sums, first blocking, then in the
// background.
#include <cstdio>
#include <tutti/tutti.hpp>

namespace {

constexpr int kCount = 1000;

void fill(tutti::Buffer<float>& data, int rank) {
  for (int i = 0; i < kCount; ++i) data[i] = static_cast<float>(rank + i);
}

// 0 + 1 + ... + (size - 1), and `size` times i: whole numbers, so floats hold them exactly.
int wrong_in(const tutti::Buffer<float>& data, int size) {
  int wrong = 0;
  for (int i = 0; i < kCount; ++i) wrong += data[i] != static_cast<float>(size * (size - 1) / 2 + size * i);
  return wrong;
}

}  // namespace

int main() try {
  tutti::Communicator comm = tutti::Communicator::from_environment();
  const int rank = comm.rank();
  const int size = comm.size();

  tutti::Buffer<float> data(kCount);  // registered: the peers reach it with no copy
  fill(data, rank);
  comm.all_reduce(data.data(), data.data(), data.size(), tutti::DataType::f32);
  int wrong = wrong_in(data, size);

  fill(data, rank);
  tutti::Work work = comm.all_reduce_async(data.data(), data.data(), data.size(), tutti::DataType::f32);
  work.wait();  // something useful could be computed before this line
  wrong += wrong_in(data, size);

  std::printf("rank %d of %d: %d numbers summed, %d wrong\n", rank, size, kCount, wrong);
  return wrong != 0;
} catch (const tutti::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
