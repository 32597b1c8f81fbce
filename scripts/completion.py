"""Writes bash's completion of a program's options, made of what the program says of them: completion.py PROGRAM FILE

Known is what `PROGRAM --help` lists: options, subcommands with options of their own, the values of an option whose text
begins with them ("sum, prod or max: ..."), and that an option takes a file, where its text has that word.
"""

import pathlib
import re
import subprocess
import sys

OPTION = re.compile(r"^  (-[\w,-]+)( \S.*?)?(?:  +(.*))?$")  # -o,--op TEXT   sum, prod or max: ...
SUBCOMMAND = re.compile(r"^  (\w[\w-]*)  +\S")
VALUES = re.compile(r"^((?:[\w.-]+, )*[\w.-]+) or ([\w.-]+)\b")


def help_of(command):
    """The options (names, whether they take a value, their text) and the subcommands."""
    text = subprocess.run([*command, "--help"], check=True, capture_output=True, text=True).stdout
    options, subcommands = [], []
    for line in text.splitlines():
        if match := OPTION.match(line):
            options.append([match[1].split(","), match[2] is not None, match[3] or ""])
        elif match := SUBCOMMAND.match(line):
            subcommands.append(match[1])
        elif options and line.startswith(" " * 8) and not options[-1][2]:
            options[-1][2] = line.strip()  # below a name that is too long for its column
    return options, subcommands


def values_of(text):
    """What an option may be set to, or nothing."""
    match = VALUES.match(re.sub(r" \([^)]*\)", "", text))
    return [*match[1].split(", "), match[2]] if match else []


def function_of(name, options, first_words):
    """A bash function that completes one word of a command line."""
    lines = [f"{name}() {{", "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}",
             "  case $previous in"]
    for names, takes_value, text in options:
        if not takes_value:
            continue
        if values := values_of(text):
            reply = f'mapfile -t COMPREPLY < <(compgen -W "{" ".join(values)}" -- "$current")'
        elif re.search(r"\bfile\b", text):
            reply = 'mapfile -t COMPREPLY < <(compgen -f -- "$current")'
        else:
            reply = "COMPREPLY=()"
        lines.append(f"    {' | '.join(names)}) {reply} && return ;;")
    words = [*first_words, *(name for names, _, _ in options for name in names)]
    return [*lines, "  esac", f'  mapfile -t COMPREPLY < <(compgen -W "{" ".join(words)}" -- "$current")', "}"]


def main():
    program = pathlib.Path(sys.argv[1])
    function = "_tutti_" + re.sub(r"\W", "_", program.name)
    options, subcommands = help_of([program])
    if not options:
        sys.exit(f"{program} --help lists no option in the form '  -o,--op TEXT  ...'")
    lines = [f"# bash completion for {program.name}, made of its --help"]
    for subcommand in subcommands:
        lines += function_of(f"{function}_{subcommand}", help_of([program, subcommand])[0], [])
    lines += function_of(function, options, subcommands)
    if subcommands:
        dispatch = ["  case ${COMP_WORDS[1]} in",
                    *(f"    {subcommand}) [ $COMP_CWORD = 1 ] || {{ {function}_{subcommand} && return; }} ;;"
                      for subcommand in subcommands), "  esac"]
        at = lines.index(f"{function}() {{") + 1
        lines[at:at] = dispatch
    pathlib.Path(sys.argv[2]).write_text("\n".join([*lines, f"complete -F {function} {program.name}", ""]))


main()
