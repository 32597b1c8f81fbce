// Descriptors 0 to 2, some of which may be closed when a process starts.
#pragma once

namespace tutti {

/// Opens /dev/null for each of these descriptors that is closed. Otherwise the next file that the process opens would
/// receive its output. The descriptors stay open. Threads: any, any time.
void open_standard_streams();

/// Flushes the standard output at a program's end. Returns `status`, or 2 in place of 0 if the output has failed, with
/// a line on standard error.
int end_of_output(const char* program, int status);

}  // namespace tutti
