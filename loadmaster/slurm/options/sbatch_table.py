"""Options of sbatch, of Slurm 22.05 to 26.05 and its plug-in pyxis: form, and treatment here.

A line has the short form ("-": none), the name, the value (=: needed, ?: may follow, .: none), and
the treatment: `used`; `silent` (it changes nothing, or asks for what is so anyway); `left` (it is
left out, with a warning); `refused` (with a reason).
"""

_TABLE = """
A account                    =  left
- acctg-freq                 =  left
a array                      =  used
- batch                      =  left
- bb                         =  left
- bbf                        =  left
b begin                      =  used
D chdir                      =  used
- cluster-constraint         =  left
M clusters                   =  left
- comment                    =  left
- consolidate-segments       .  left
C constraint                 =  used
- container                  =  refused
- container-entrypoint       .  left
- container-entrypoint-log   .  left
- container-env              =  used
- container-id               =  refused
- container-image            =  used
- container-mount-home       .  left
- container-mounts           =  used
- container-name             =  used
- container-readonly         .  left
- container-remap-root       .  left
- container-save             =  left
- container-workdir          =  used
- container-writable         .  silent
- context                    =  left
- contiguous                 .  left
S core-spec                  =  left
- cores-per-socket           =  left
- cpu-freq                   =  left
- cpus-per-gpu               =  used
c cpus-per-task              =  used
- deadline                   =  used
- delay-boot                 =  left
d dependency                 =  used
m distribution               =  left
e error                      =  used
x exclude                    =  left
- exclusive                  ?  used
- export                     =  used
- export-file                =  refused
- extra                      =  left
B extra-node-info            =  left
- get-user-env               ?  left
- gid                        =  left
- gpu-bind                   =  left
- gpu-freq                   =  left
G gpus                       =  used
- gpus-per-node              =  used
- gpus-per-socket            =  used
- gpus-per-task              =  used
- gres                       =  used
- gres-flags                 =  left
h help                       .  refused
- hint                       =  left
H hold                       .  used
- ignore-pbs                 .  used
i input                      =  used
J job-name                   =  used
- kill-on-invalid-dep        =  left
L licenses                   =  left
- mail-type                  =  left
- mail-user                  =  left
- mcs-label                  =  left
- mem                        =  used
- mem-bind                   =  left
- mem-per-cpu                =  used
- mem-per-gpu                =  used
- mem-update                 =  left
- mincpus                    =  left
- network                    =  left
- nice                       ?  left
- no-container-entrypoint    .  silent
- no-container-mount-home    .  silent
- no-container-remap-root    .  silent
k no-kill                    ?  left
- no-requeue                 .  used
F nodefile                   =  left
w nodelist                   =  left
N nodes                      =  used
n ntasks                     =  used
- ntasks-per-core            =  left
- ntasks-per-gpu             =  used
- ntasks-per-node            =  used
- ntasks-per-socket          =  left
- oom-kill-step              ?  left
- open-mode                  =  left
o output                     =  used
O overcommit                 .  left
s oversubscribe              .  left
- parsable                   .  silent
p partition                  =  left
- power                      =  left
- prefer                     =  left
- priority                   =  left
- profile                    =  left
- propagate                  ?  left
q qos                        =  left
Q quiet                      .  silent
- reboot                     .  left
- requeue                    .  used
- reservation                =  left
- resv-ports                 ?  left
- segment                    =  left
- signal                     =  used
- sockets-per-node           =  left
- spread-job                 .  left
- spread-segments            .  left
- stepmgr                    .  left
- switches                   =  left
- test-only                  .  used
- thread-spec                =  left
- threads-per-core           =  left
t time                       =  used
- time-min                   =  left
- tmp                        =  left
- tres-bind                  =  left
- tres-per-task              =  left
- uid                        =  left
- usage                      .  refused
- use-min-nodes              .  left
v verbose                    .  silent
V version                    .  refused
W wait                       .  silent
- wait-all-nodes             =  left
- wckey                      =  left
- wrap                       =  used
"""

ALIASES = {
    "cluster": "clusters",
    "ntasks-per-tres": "ntasks-per-gpu",
    "tasks-per-node": "ntasks-per-node",
}
"""Other names of options. `--tasks` is a beginning of `--tasks-per-node`, as of sbatch."""

_NO_BUNDLE = "the script would run without its container; push the image, and use --container-image"
_HELP = "it submits nothing; leave it out, and see docs/jobs.md"
REASONS = {
    "container": _NO_BUNDLE,
    "container-id": _NO_BUNDLE,
    "export-file": "the script would run without its variables; name them by --export=NAME=value",
    "help": _HELP,
    "usage": _HELP,
    "version": _HELP,
}
"""Reason and remedy of each option that is refused."""


def _rows() -> list[list[str]]:
    """Return the four fields of each line of the table."""
    return [line.split() for line in _TABLE.strip().splitlines()]


SHORT_FORMS = {short: name for short, name, _, _ in _rows() if short != "-"}
"""Names of options by letter."""

VALUES = {name: value.replace(".", "") for _, name, value, _ in _rows()}
"""By name: "=" if an option needs a value, "?" if one may follow, "" if it has none."""

LEFT = "left"
REFUSED = "refused"
TREATMENTS = {name: treatment for _, name, _, treatment in _rows()}
"""Treatment of each option by name: used, silent, left or refused."""
