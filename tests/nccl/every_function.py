"""Writes a program in C that is linked to every function of NVIDIA's headers, by both of its names.

It ends with 0 when the file that its argument names has them all. What has a function less cannot even start it.
"""

import argparse
import pathlib

from header_functions import functions_of

PROGRAM = """#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef void function_t(void);
%(declarations)s
static const struct { const char* name; function_t* function; } functions[] = {
%(rows)s};

int main(int argc, char** argv) {
  size_t elsewhere = 0;
  const size_t count = sizeof functions / sizeof *functions;
  for (size_t i = 0; i < count; ++i) {
    Dl_info found;
    if (dladdr((void*)functions[i].function, &found) != 0 && argc == 2 && strcmp(found.dli_fname, argv[1]) == 0) continue;
    printf("%%s is not of %%s\\n", functions[i].name, argc == 2 ? argv[1] : "a file that was named");
    ++elsewhere;
  }
  printf("%%zu functions, %%zu of them elsewhere\\n", count, elsewhere);
  return elsewhere != 0;
}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("include", type=pathlib.Path, help="the folder of NVIDIA's nccl.h")
    parser.add_argument("program", type=pathlib.Path, help="to be written")
    arguments = parser.parse_args()
    names = sorted(functions_of(arguments.include))
    arguments.program.write_text(PROGRAM % {
        "declarations": "".join(f"function_t {name};\n" for name in names),
        "rows": "".join(f'    {{"{name}", {name}}},\n' for name in names)})


main()
