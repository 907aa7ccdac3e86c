# The lease guard of a container whose image has no Python; see guard.py, which it gives way to where there is one.
# sh guard.sh FOLDER ORDERS GRACE BOOT_ID [WALLTIME DEADLINE [SIGNAL BEFORE TO]]: FOLDER as for guard.py, ORDERS holds lease.json
# and stop.json, GRACE, WALLTIME (from the start), DEADLINE (since boot) and BEFORE in hundredths of a second, "-" for none. The
# number SIGNAL is sent BEFORE the earlier of both ends, to the job's `first` process, to the `steps` of its script, or to `all`. The launch is in FOLDER/launch.sh, which the job's own shell runs and empties first, for it holds secrets.
# The job's output goes through pipes where the image has mkfifo and cat: a full disk loses output, not the job.
# Needs sh and sleep, nothing else. It must be process 1 of its own process namespace: it signals every other process there.
set -u
umask 077
folder=$1 orders=$2 grace=$3 boot=$4 walltime=${5:--} ends=${6:--} signal=${7:-} before=${8:-0} to=${9:-all}

for python in python3 python; do
  if command -v "$python" >/dev/null 2>&1 &&
    "$python" -I -S -c 'import sys, ctypes; sys.exit(sys.version_info < (3, 9))' >/dev/null 2>&1; then
    exec "$python" -I -S "${0%/*}/guard.py" "$folder"
  fi
done

[ $$ -eq 1 ] || { echo "guard: not process 1 of a container" >&2; exit 18; }
command -v sleep >/dev/null 2>&1 || { echo "guard: the image has neither Python 3.9 nor the command sleep" >&2; exit 19; }
set -C
{ : >"$folder/guard.pid"; } 2>/dev/null || exit 17
set +C
# Room that a full disk cannot take: the ends are written over it.
printf '%512s' '' >"$folder/exit.json"
printf '%16s' '' >"$folder/code"

never=999999999999999
[ "$ends" != - ] || ends=$never
over=$never
by= term_at=$never kill_at=$never deadline=0 termed= killed=false signalled=
trap 'signalled=1' TERM INT HUP

# Sets `now` to hundredths of a second since boot.
clock() { read -r up _ </proc/uptime; now=${up%.*}${up#*.}; }

# number TEXT KEY: sets `value` to the number of the key in hundredths.
number() {
  value=${1#*\"$2\": }
  [ "$value" != "$1" ] || return 1
  value=${value%%[,\}]*}
  case $value in *.*) part=${value#*.}00 ;; *) part=00 ;; esac
  value=${value%%.*}${part%"${part#??}"}
  while [ "${#value}" -gt 1 ] && [ "${value#0}" != "$value" ]; do value=${value#0}; done
  case $value in '' | *[!0-9]*) return 1 ;; esac
}

# order BY TERM KILL: the earliest of all orders holds.
order() {
  if [ -z "$by" ] || [ "$3" -lt "$kill_at" ]; then by=$1; fi
  [ "$2" -ge "$term_at" ] || term_at=$2
  [ "$3" -ge "$kill_at" ] || kill_at=$3
}

look() {
  text=
  { read -r text <"$orders/stop.json"; } 2>/dev/null
  if number "$text" term_at_s; then
    term=$value who=${text#*\"by\": \"}
    if number "$text" kill_at_s; then order "${who%%\"*}" "$term" "$value"; fi
  fi
  text=
  { read -r text <"$orders/lease.json"; } 2>/dev/null
  case $text in *"\"boot_id\": \"$boot\""*) if number "$text" deadline_s; then deadline=$value; fi ;; esac
  [ "$now" -lt "$deadline" ] || order lease "$deadline" $((deadline + grace))
  [ "$now" -lt "$over" ] || order walltime "$over" $((over + grace))
  [ "$now" -lt "$ends" ] || order deadline "$ends" $((ends + grace))
  [ -z "$signalled" ] || { order signal "$now" $((now + grace)); signalled=; }
}

# is_of_step PID: srun started the process, or one above it.
is_of_step() {
  {
    while read -r line || [ -n "$line" ]; do
      case $line in *SLURM_STEP_ID=*) return 0 ;; esac
    done <"/proc/$1/environ"
  } 2>/dev/null
  return 1
}

# Sends the signal before the end; all processes but the guard's own are the job's.
warn() {
  for stat in /proc/[0-9]*/stat; do
    { read -r line <"$stat"; } 2>/dev/null || continue
    pid=${line%% *} parent=${line##*) }
    parent=${parent#* }
    parent=${parent%% *}
    [ "$pid" != 1 ] && [ "$pid" != "$group" ] || continue
    case $to in
      first) [ "$parent" = "$group" ] || continue ;;
      steps) is_of_step "$pid" || continue ;;
    esac
    kill "-$signal" "$pid" 2>/dev/null
  done
}

# keep FILE: empties a pipe of the job's into it; what finds no room is lost.
keep() {
  trap '' TERM INT HUP $signal
  while ! cat >>"$1" 2>/dev/null; do sleep 0.1 2>/dev/null || sleep 1; done
}

# Sets `code` to the exit code of the job; fails until it has ended.
ended() {
  code=
  { read -r code <"$folder/code"; } 2>/dev/null
  [ -n "$code" ]
}

# tell STARTED CODE ERROR
tell() {
  at=$(date +%s 2>/dev/null) || at=null
  who=null
  [ -z "$by" ] || who="\"$by\""
  # it ended by itself in the moment in which its time was over
  case $by$termed$killed in walltimefalse | deadlinefalse) who=null ;; esac
  printf '{"ended_at_s": %s, "started": %s, "exit_code": %s, "stopped_by": %s, "killed": %s, "oom": false, "error": "%s"}' \
    "${at:-null}" "$1" "$2" "$who" "$killed" "$3" 1<>"$folder/exit.json"
  exit 0
}

clock
look
[ "$now" -lt "$deadline" ] || tell false null "the lease had run out before the job was started"

out=$folder/stdout.log err=$folder/stderr.log
if command -v cat >/dev/null 2>&1 && mkfifo "$folder/stdout" "$folder/stderr" 2>/dev/null; then
  keep "$out" <"$folder/stdout" &
  keep "$err" <"$folder/stderr" &
  out=$folder/stdout err=$folder/stderr
fi
{
  trap : TERM INT HUP
  (
    { echo 500 >/proc/self/oom_score_adj; } 2>/dev/null
    . "$folder/launch.sh"
  ) </dev/null >>"$out" 2>>"$err"
  printf '%s\n' "$?" 1<>"$folder/code"
} &
group=$!
[ "$walltime" = - ] || over=$((now + walltime))
[ "$over" -lt "$ends" ] && warn_at=$((over - before)) || warn_at=$((ends - before))
while ! ended; do
  sleep 0.1 2>/dev/null || sleep 1
  clock
  look
  if [ "$now" -ge "$kill_at" ]; then
    ended || { killed=true; kill -KILL -1; break; }
  elif [ "$now" -ge "$term_at" ] && [ -z "$termed" ]; then
    termed=1
    kill -TERM -1
  elif [ -n "$signal" ] && [ -z "$termed" ] && [ "$now" -ge "$warn_at" ]; then
    warn
    signal=
  fi
done
[ "$killed" = false ] || code=137
# Nothing of the job outlives it: a moment for what is left, then the end of process 1 ends it all.
if kill -TERM -1 2>/dev/null; then sleep 1; fi
tell true "$code" ""
