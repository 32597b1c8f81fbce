// Descriptors 0 to 2, which a process may have been started without.
#pragma once

namespace tutti {

/// Each of these descriptors that is closed becomes /dev/null: else the next file that the process opens would get what
/// it prints. The descriptors stay open. Threads: any, any time.
void open_standard_streams();

/// What a program does last: whether all that it printed has been written. Returns `status`, or 2 in place of 0 when
/// the standard output has failed, which is told on standard error.
int end_of_output(const char* program, int status);

}  // namespace tutti
