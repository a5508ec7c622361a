#!/bin/sh
# Asks a solver about the obligations of this bundle; each is to be unsat.
#
#   sh run.sh [-o FILE] [-j N] [-p K/N] [-n NAME] [-v VERSION] [--] [SOLVER [OPTION...]]
#
# SOLVER is any command (default: z3) that prints unsat, sat or unknown for a file of SMT-LIB 2.6. The file is its
# last word, or takes the place of the word {}. For example: sh run.sh -o answers.txt cvc5 --lang smt2
#
# -o FILE     write the answers to FILE; a run that was interrupted goes on there. Else they are printed.
# -j N        ask N at a time (1)
# -p K/N      ask only part K of N, such as one of N machines
# -n, -v      the solver's name and version, where the command does not say them
#
# The answers are lines 'NNNN answer' after lines that say the solver and the obligations: the input of
# tv-check --answers. What the solver prints else is shown. Exit code 0: all unsat; 1: not all; 2: usage.
# Needs sh, grep, sed, tr, mv and one of sha256sum, shasum, openssl.
set -u
LC_ALL=C
export LC_ALL

fail() {
  echo "run.sh: $1" >&2
  exit 2
}

is_number() {
  case $1 in
    '' | *[!0-9]* | 0*) return 1 ;;
  esac
}

out= jobs=1 part=1 parts=1 name= version=
while getopts o:j:p:n:v: option; do
  case $option in
    o) out=$OPTARG ;;
    j) jobs=$OPTARG ;;
    p) part=${OPTARG%%/*} parts=${OPTARG#"$part"} parts=${parts#/} ;;
    n) name=$OPTARG ;;
    v) version=$OPTARG ;;
    *) fail "usage: sh run.sh [-o FILE] [-j N] [-p K/N] [-n NAME] [-v VERSION] [--] [SOLVER [OPTION...]]" ;;
  esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || set -- z3
is_number "$jobs" || fail "-j takes a number, not '$jobs'"
is_number "$part" && is_number "$parts" && [ "$part" -le "$parts" ] || fail "-p takes a part such as 2/8"
command -v "$1" >/dev/null 2>&1 || fail "there is no command $1"

case $0 in
  */*) here=${0%/*} ;;
  *) here=. ;;
esac

sha256() {
  if command -v sha256sum >/dev/null 2>&1; then sha256sum
  elif command -v shasum >/dev/null 2>&1; then shasum -a 256
  else openssl dgst -sha256 -r
  fi
}
[ -r "$here/../manifest-sha256.txt" ] || fail "$here/.. is no bag: it has no manifest-sha256.txt"
digest=$(grep ' data/obligations/' "$here/../manifest-sha256.txt" | sha256) || fail "no SHA-256 of the obligations"
digest=${digest%% *}
[ ${#digest} -eq 64 ] || fail "no SHA-256 of the obligations"

[ -n "$name" ] || name=${1##*/}
# Solvers that know no --version say so in a line, which is as good.
[ -n "$version" ] || version=$("$1" --version </dev/null 2>&1 | sed -n '/./{p;q;}')
version=$(printf '%s\n' "${version:-unknown}" | tr -c ' -~\n' '?')
header="# trainverify answers 1
# solver $name
# version $version
# obligations $digest"

known=' '
if [ -n "$out" ]; then
  if [ -s "$out" ]; then
    [ "$(grep '^#' "$out")" = "$header" ] || fail "$out holds something else: not this solver's answers to this bundle"
    # A line that was cut short goes, and so does an error: these are asked again.
    grep -E '^(#.*|[0-9]+ (unsat|sat|unknown))$' "$out" >"$out.new" && mv "$out.new" "$out" || fail "cannot write $out"
    known=" $(sed -n 's/^\([0-9][0-9]*\) .*/\1/p' "$out" | tr '\n' ' ')"
  else
    printf '%s\n' "$header" >"$out" || fail "cannot write $out"
  fi
else
  printf '%s\n' "$header"
fi

say() {
  if [ -n "$out" ]; then echo "$1" >>"$out"; else echo "$1"; fi
}

# ask NUMBER FILE SOLVER...: one line. Errors of the solver are seen as it prints them.
ask() {
  number=$1 file=$2 placed=no
  shift 2
  for word; do
    shift
    [ "$word" != '{}' ] || { word=$file placed=yes; }
    set -- "$@" "$word"
  done
  [ "$placed" = yes ] || set -- "$@" "$file"
  said=$("$@" </dev/null)
  code=$?
  case $code/$said in
    0/unsat | 0/sat | 0/unknown) ;;
    *)
      printf '%s\n' "run.sh: $number: exit code $code, printed: $said" >&2
      said=error
      ;;
  esac
  say "$number $said"
  [ "$said" = unsat ]
}

# work WORKER SOLVER...: the obligations of this part whose turn is this worker's
work() {
  worker=$1 place=0 bad=0
  shift
  for path in "$here"/obligations/*.smt2; do
    [ -f "$path" ] || fail "there are no obligations in $here/obligations"
    turn=$place place=$((place + 1)) own=${path##*/}
    [ $((turn % parts)) -eq $((part - 1)) ] && [ $((turn / parts % jobs)) -eq "$worker" ] || continue
    case $known in *" ${own%.smt2} "*) continue ;; esac
    ask "${own%.smt2}" "$path" "$@" || bad=1
  done
  return $bad
}

if [ "$jobs" -eq 1 ]; then
  work 0 "$@"
  code=$?
else
  code=0 pids= next=0
  trap 'kill $pids 2>/dev/null; exit 130' INT TERM
  while [ $next -lt "$jobs" ]; do
    work $next "$@" &
    pids="$pids $!" next=$((next + 1))
  done
  for pid in $pids; do
    wait "$pid" || code=1
  done
fi
[ -z "$out" ] || ! grep -q -E '^[0-9]+ (sat|unknown)$' "$out" || code=1
exit $code
