"""The grammar of what carriers put before a line: one pattern each, composed from the outside in by ``log_prefix``.

A pattern eats one carrier and names what it tells: rank, local, node, level, logger, pg (rank inside a group), and the
parts of a time. Nothing here knows an order: containers in syslog in srun in torchrun in a logger are as good as any.
"""

from __future__ import annotations

import re
from string import ascii_letters, digits

LEVEL = r"TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|ERR|CRITICAL|FATAL|SEVERE"
QUIET_LEVELS = frozenset({"TRACE", "DEBUG", "INFO", "NOTICE"})
WARNINGS = frozenset({"WARN", "WARNING"})
LOUD_LEVELS = frozenset({"ERROR", "ERR", "CRITICAL", "FATAL", "SEVERE"})
GLOG_LEVELS = {"I": "INFO", "W": "WARNING", "E": "ERROR", "F": "FATAL", "C": "CRITICAL", "V": "DEBUG", "D": "DEBUG",
               "T": "TRACE"}  # fmt: skip
CLOCK = r"(?P<h>\d\d):(?P<mi>\d\d):(?P<s>\d\d(?:[.,]\d{1,9})?)"
ZONE = r"(?:\s?(?:Z\b|UTC\b|[+-]\d\d:?\d\d\b))?"
DATE = r"(?P<y>\d{4})[-/](?P<mo>\d\d)[-/](?P<d>\d\d)"
MONTH = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
#: What programs print first: behind a bare word and a colon it tells that the word is a host (pdsh, clush, DeepSpeed).
PROGRAM_BEGINS = (
    r"(?:Traceback \(most|  +\S|\[rank ?\d|\[default\d|[A-Za-z]\w*(?:\.\w+)*(?:Error|Exception)\b|\[?\d{4}-|"
    r"\[?[IWEF]\d{3,4} |\d{1,3}%\||slurmstepd: |terminate called|NCCL |\S+:\d+:\d+ \[\d+\] )"
)
#: Containers of pods as people call them: stern prints "pod container text", and any other word may be of a sentence.
CONTAINERS = (
    r"(?:pytorch|tensorflow|jax|mpi|ray(?:-\w+)?|main|trainer|worker|master|launcher|train(?:ing|er)?|job|app|node|head|"
    r"driver|container(?:-\d+)?|torchrun|megatron|nemo|user-container|llm|model|python|cuda|pretrain|finetune)"
)
#: Names that only hosts have: a word and a number alone may as well be of a step, a stage or a device.
BRACKETED_HOST = (
    r"(?:(?:node|host|nid|compute|dgx|hgx)-?\d|(?:gpu-?node|cn|[abhv]\d{2,3}x?|mi\d{3}x?|gb\d{3})-\d|"
    r"gpu-\d\d|ip-\d)[\w.-]*"
)

#: What a carrier can begin with (a bracket, a dash, 0 for any digit, a for any letter; after "=" only what is listed),
#: and its pattern. Tried in turn till none matches. Named groups: rank (global), local, inner (a rank in ``group``),
#: role and replica (of torchx), actor (of Ray, read further by ``log_prefix``), node, device, level, logger, and the
#: parts of a time.
PATTERNS: tuple[tuple[str, str], ...] = (
    # kubectl logs --prefix, stern, docker compose
    ("[", r"\[(?:pod/)?(?P<node>[a-z0-9][a-z0-9.-]*-[a-z0-9.-]+)/[a-z0-9][\w.-]*\] ?"),
    ("a", r"(?P<node>[a-z][\w.-]*[-_]\d+)\s+\| ?"),
    ("a", rf"(?:[a-z][a-z0-9-]* )?(?P<node>[a-z][a-z0-9-]*-(?:\d{{1,4}}|[a-z0-9]{{5}})) {CONTAINERS} (?=\S|  )"),
    # CRI: after its time stamp
    ("=s", r"(?:stdout|stderr) [FP] "),
    # mpirun --tag-output; srun -l; torchrun --tee and c10d
    ("[", r"\[(?:[\w.@-]+@|\d+,)(?:\d+,)?(?P<rank>\d{1,6})\](?:\[[\w.:-]+\])?<std(?:out|err|diag)>: ?"),
    ("[", r"\[(?P<rank>\d{1,6})\]<std(?:out|err)>: ?"),
    (
        "=MTWFS",
        rf"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) (?P<mon>{MONTH}) +(?P<d>\d\d?) {CLOCK}(?: [A-Z]{{3,4}})? \d{{4}}:? ?(?=\S)",
    ),
    # pdsh and clush: addresses
    ("0", r"(?P<node>\d{1,3}(?:\.\d{1,3}){3}): ?"),
    ("[0a", r"\[?(?P<node>(?=[0-9a-fA-F:]*::|(?:[0-9a-fA-F]+:){7})[0-9a-fA-F:]*[0-9a-fA-F](?:%\w+)?)\]?: "),
    # oneCCL
    ("0", rf"(?P<y>\d{{4}}):(?P<mo>\d\d):(?P<d>\d\d)-{CLOCK}:? ?\( ?\d+\) \|CCL_(?P<level>{LEVEL})\| ?"),
    ("0", r"(?P<rank>\d{1,6}): ?(?!\d\d:\d\d)"),
    # Intel MPI and MPICH with -l: [3] text
    ("[", r"\[(?P<rank>\d{1,5})\] (?=\S| )"),
    # torchx: role/replica, and the worker of it
    ("a", r"(?P<role>[a-z][\w-]*)/(?P<replica>\d{1,5}) \[(?P<local>\d{1,4})\]: ?"),
    (
        "a",
        r"(?P<role>(?:trainer|worker|head|chief|ps|launcher|node|main|app|ddp|actor|learner|"
        r"python))/(?P<replica>\d{1,5}) ",
    ),
    ("[", r"\[default(?P<local>\d{1,4})\]: ?"),
    ("[", r"\[(?:[Rr]ank|RANK)[ _:]?(?P<rank>\d{1,6})\]:? ?"),
    ("[", r"\[(?:trainer|worker)(?P<local>\d{1,4})\]: ?"),
    ("=Rr", r"(?:[Rr]ank|RANK)[ _]?(?P<rank>\d{1,6}) ?[:|] ?"),
    ("=Rr", rf"(?:[Rr]ank|RANK)[ =](?P<rank>\d{{1,6}}),? (?=\[?(?:{LEVEL})\b)"),
    # A host and the rank on it: [node-07:rank14], [node-07][rank 14]
    ("[", r"\[(?P<node>[A-Za-z][\w.-]*)[:/][Rr]ank ?(?P<rank>\d{1,6})\]:? ?"),
    ("[", r"\[(?P<node>[A-Za-z][\w.-]*\d[\w.-]*)\](?= ?\[(?:[Rr]ank|RANK)[ _:]?\d{1,6}\])"),
    ("[", rf"\[(?P<node>{BRACKETED_HOST})\]:? (?=\S)"),
    ("(", r"\((?:rank|RANK)[ =](?P<rank>\d{1,6})\) ?"),
    # Ray and vLLM
    ("(", r"\((?P<actor>(?:[^()]|\([^()]*\)){0,100}?\b(?:pid|ip)=(?:[^()]|\([^()]*\)){1,80})\) ?"),
    ("(", r"\((?P<actor>(?:raylet|autoscaler|gcs_server|scheduler|log_monitor)\b[^()]{0,60})\) ?"),
    # torch_npu and CANN
    ("(", r"\(PID:\d+, Device:-?(?P<device>\d+), RankID:-?(?P<rank>\d+)\) ?"),
    # Open MPI: [host:pid] of who says it; Cray MPICH: the rank, the job, the time and the node
    ("[", r"\[(?P<node>[A-Za-z][\w.-]*):\d+\] (?=\S| )"),
    (
        "=M",
        r"MPICH ERROR \[Rank (?P<rank>\d{1,6})\] \[job id [^\]]*\] \[[^\]]*\] \[(?P<node>[\w.-]+)\] - ",
    ),
    # Horovod: [2023-01-01 00:00:00.000000: E file.cc:12] [3]:
    (
        "[",
        rf"\[{DATE} {CLOCK}: (?P<glog>[TDIWEF]) (?P<logger>[\w./-]+\.\w+:\d+)\] (?:\[(?P<rank>\d{{1,6}})\]: ?)?",
    ),
    # Ray's own files: [2023-01-01 00:00:00,000 E 1 1] (raylet) node_manager.cc:3040:
    ("[", rf"\[{DATE} {CLOCK} (?P<glog>[IWEFCD]) \d+ \d+\] "),
    ("0a", r"(?P<logger>[\w./-]+\.(?:cc|cpp|h|hpp|c|cu|py|rs|go):\d+): (?=\S)"),
    # glog and c10d: [E224 19:02:08.000 file.cpp:697], E0224 19:02:08.0 123 file.cc:1]
    (
        "=[IWEFCV",
        rf"\[?(?P<glog>[IWEFCV])(?:(?P<mo>\d\d?)(?P<d>\d\d) {CLOCK})?(?: +\d+)? (?P<logger>[\w./-]+\.\w+:\d+)\] ?",
    ),
    # syslog: <priority>, time, host, program[pid]:
    ("<", r"<\d{1,3}>(?:\d )?"),
    ("=JFMASOND", rf"(?P<mon>{MONTH})\s+(?P<d>\d\d?) {CLOCK}(?: \d{{4}})? "),
    (
        "0a",
        r"(?P<node>[A-Za-z][\w.-]*|\d+\.\d+\.\d+\.\d+) (?!slurmstepd|kernel|srun|slurmctld)(?:[\w./@-]+)\[\d+\]: ",
    ),
    ("a", r"(?P<node>[A-Za-z][\w.-]*) (?:(?=(?:slurmstepd|slurmd|srun|slurmctld)(?:\[\d+\])?: )|kernel: )"),
    ("=k", r"kernel: "),
    ("=s", r"(?:slurmstepd|slurmd)\[\d+\]: (?=error)"),
    # times of loggers, in brackets or not
    ("[(0", rf"[\[(]?{DATE}[T _-]{CLOCK}{ZONE}[\])]?,?(?:\s*[|:-](?=\s))?\s*"),
    ("[(", rf"[\[(](?P<mo>\d\d)/(?P<d>\d\d)/(?P<y>\d\d(?:\d\d)?),? {CLOCK}[\])]\s*"),
    ("0", rf"(?P<mo>\d\d)[/-](?P<d>\d\d)(?:[/-]\d\d(?:\d\d)?)? {CLOCK}(?:\s*[|:-](?=\s))?\s+"),
    ("[(", rf"[\[(]{CLOCK}{ZONE}[\])](?:\s*[|:-](?=\s))?\s*"),
    ("0", rf"{CLOCK}(?:\s*[|:-])?\s+(?=\S)"),
    ("[", r"\[\s*\d+\.\d{6}\] "),
    # levels
    ("=[TDINWECFS", rf"\[?(?P<level>{LEVEL})\]?(?:[:|\s-]|$)\s*(?:(?<=:)(?P<logger>[\w.]+):)?\s*"),
    ("[", rf"\[(?P<logger>[\w./<>-]+)\]\s?\[(?P<level>{LEVEL})\](?:\s?[:-])?\s*"),
    (
        "0a-",
        rf"(?:- )?(?P<logger>[\w./]+)(?:\s+[-|]|\s*:)\s+\[?(?P<level>{LEVEL})\]?(?:\s+[-|:])?(?:\s+|$)",
    ),
    ("[", rf"\[(?P<level>{LEVEL})\s*\]\s*"),
    ("[", r"\[(?P<level>debug|info|notice|warn|warning|error|fatal|critical) *\]:?\s+"),
    ("[", r"\[(?P<logger>[\w./-]+\.py):\d+(?::[\w<>]+)?\]:?\s*"),
    ("0a", r"(?P<logger>[\w./-]+\.py):\d+\]\s*"),
    ("[", r"\[(?:PG|pg) (?:ID )?(?P<group>[^\]]{0,80}?)\s*\b(?:Rank|rank) (?P<inner>\d{1,6})\]\s*"),
    # pdsh, deepspeed, clush: a host with a number in its name
    (
        "a",
        r"(?![\w.]*(?:Error|Exception|Timeout|Warning|Interrupt)\b)(?!(?:python|rank|step|epoch|loss|iter|cuda|gpu)_?\d)"
        r"(?![A-Z]{1,3}\d{4,6}: )(?P<node>[a-zA-Z][a-zA-Z.-]*[_.-]?\d[\w.-]*): (?!error|line )(?=\S|  )",
    ),
    (
        "a",
        r"(?!(?:error|fatal|warning|info|note|python|bash|sh|ssh|srun|slurmstepd|kernel|mpirun|wandb|git)\b)"
        rf"(?P<node>[a-z][a-z0-9]*(?:[-.][a-z0-9]+)*): (?={PROGRAM_BEGINS})",
    ),
)


def _begins(starts: str, letter: str) -> bool:
    if starts.startswith("="):
        return letter in starts[1:]
    return (letter.isdigit() and "0" in starts) or (letter.isalpha() and "a" in starts) or letter in starts.strip("0a")


#: By the character with which a line goes on.
CARRIERS: dict[str, tuple[re.Pattern[str], ...]] = {
    letter: tuple(re.compile(pattern) for starts, pattern in PATTERNS if _begins(starts, letter))
    for letter in f"{ascii_letters}{digits}[(<-"
}
