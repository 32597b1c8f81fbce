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

# logged NAME WHAT COMMAND...: a long command, with its output in build/log/NAME.log and one line of progress on the screen.
logged() {
  local log=build/log/$1.log what=$2
  shift 2
  if command -v python3 > /dev/null; then
    python3 -B scripts/progress.py "$log" "$what" "$@"
  else  # which is among the first packages that are installed
    mkdir -p build/log
    say "$what ..."
    "$@" > "$log" 2>&1 < /dev/null || { tail -n 40 "$log" >&2 && return 1; }
  fi
}

# The same by sudo where this is not root. sudo asks for its password before, since the command itself has no terminal.
logged_as_root() {
  if [ "$(id -u)" = 0 ]; then logged "$@"; return; fi
  mkdir -p build/log && : > "build/log/$1.log"  # so it stays this user's
  sudo bash -c 'source scripts/ui.sh; logged "$@"' dev "$@"
}

# recorded LOG COMMAND...: runs the command and keeps what it says. On a terminal the command has one too, for its
# progress bar.
recorded() {
  local log=$1
  shift
  if [ -t 1 ] && command -v script > /dev/null; then
    script --quiet --return --command "$(printf '%q ' "$@")" "$log"
  else
    "$@" 2>&1 | tee "$log"
  fi
}
