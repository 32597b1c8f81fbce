#!/bin/sh
# The input for help2man: the help of a program and of its subcommands, with the spaces that help2man tells
# options from their texts by. help_for_man.sh PROGRAM --help
program=$1

spaced() {
  sed -E 's/^  (-.),--/  \1, --/; s/^( +-[^ ]*,?( --[^ ]+)?) ([A-Z]+)(:[A-Z]+( in \[[^]]*\])?)?(=[^ ]+)?( [.][.][.])?( REQUIRED)?/\1 \3\6   /'
}

"$program" --help | spaced
"$program" --help | sed -n '/^Subcommands:/,$s/^  \([a-z]*\)  .*/\1/p' | while read -r subcommand; do
  printf '\nOptions of %s:\n' "$subcommand"
  "$program" "$subcommand" --help < /dev/null | sed '1,/^Options:/d' | spaced
done
