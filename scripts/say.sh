# How ./dev talks: headings with a number and the time so far, plain lines, and one line for a failure.
started=$SECONDS
steps_done=0
steps_all=0

steps() { steps_all=$1; }

clock() { printf '%d:%02d' $(((SECONDS - started) / 60)) $(((SECONDS - started) % 60)); }

step() {
  steps_done=$((steps_done + 1))
  printf '\n[%d/%d] %s (%s)\n' $steps_done "$steps_all" "$1" "$(clock)"
}

say() { printf '%s\n' "$*"; }

warn() { printf 'dev: %s\n' "$*" >&2; }

fail() {
  printf 'dev: %s\n' "$*" >&2
  exit 1
}
