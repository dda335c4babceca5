"""A file system in user space whose server counts metadata operations by job, as Lustre's jobstats do, and is slow when
it is asked for much: ``python -m benchmarks.counted_storage PATH PORT``.

One reader takes requests from the kernel, one server serves them in their order, each for ``SERVICE_S``: who asks waits
for all that were asked before. A request names the thread that asks; its job is SLURM_JOB_ID in the environment of that
process (Lustre's ``jobid_var``), else "COMMAND.UID" (``procname_uid``). http://127.0.0.1:PORT/metrics has the counts in
the words of Lustre's exporter; /nfsd and /client/JOB tell the same operations as a kernel's NFS server, which knows no
jobs, and that job's NFS client do to node_exporter. Needs root and /dev/fuse. Prints "ready" once it is mounted; ends
when it is unmounted.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue

from tests.agents.collectors.stalling_fuse import ANSWER, HEADER, SILENT, answer, mount

#: What one operation takes its server.
SERVICE_S = 3e-4
#: Files that are there from the first.
FILES = 4096
TARGET = "work-MDT0000"
SOURCE = "mds1@tcp:/work"
#: FUSE's operations by the names that a metadata target counts them under; others are not counted.
_NAMES = {1: "getattr", 3: "getattr", 10: "unlink", 14: "open", 17: "statfs", 18: "close", 27: "getattr", 35: "open"}
#: Of NFS.
_METHODS = {"getattr": "GetAttr", "open": "Create", "unlink": "Remove", "statfs": "FsStat", "close": "Commit"}
#: A thread's job is asked again after this time: numbers of threads come again.
_KNOWN_S, _MOST_KNOWN = 5.0, 4096
_Request = tuple[float, int, int, int, int, int, bytes]


def name_of_file(number: int) -> str:
    """Of one of the files that are there from the first."""
    return f"sample-{number % FILES:05d}"


def job_of_process(pid: int, uid: int) -> str:
    """The job of a process or thread, as Lustre's clients find it; "COMMAND.UID" of one without, or that is gone."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = dict(pair.split(b"=", 1) for pair in file.read().split(b"\0") if b"=" in pair)
        if job := variables.get(b"SLURM_JOB_ID", b"").decode(errors="replace"):
            return job
        with open(f"/proc/{pid}/comm") as file:
            return f"{file.read().strip()}.{uid}"
    except OSError:
        return f"unknown.{uid}"


class MetadataServer:
    """Serves a mounted channel in threads of its own; ``page`` from any thread."""

    def __init__(self, channel: int) -> None:
        self._channel = channel
        self._asked: SimpleQueue[_Request | None] = SimpleQueue()
        self._files = {name_of_file(number).encode() for number in range(FILES)}
        self._jobs: dict[int, tuple[float, str]] = {}
        self._lock = threading.Lock()
        self._by_job: Counter[tuple[str, str]] = Counter()
        self._count: Counter[str] = Counter()
        self._time_s: dict[str, float] = {}

    def serve(self) -> None:
        """Until it is unmounted."""
        server = threading.Thread(target=self._serve, daemon=True)
        server.start()
        while True:
            try:
                raw = os.read(self._channel, 1 << 20)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    break
                continue
            _, operation, unique, node, uid, _, pid, _ = HEADER.unpack_from(raw)
            if operation not in SILENT:
                self._asked.put((time.monotonic(), operation, unique, node, uid, pid, raw[HEADER.size :]))
        self._asked.put(None)
        server.join()

    def _serve(self) -> None:
        done_s = 0.0
        while (request := self._asked.get()) is not None:
            asked_s, operation, unique, node, uid, pid, body = request
            name = _NAMES.get(operation)
            if name is not None:
                done_s = max(done_s, asked_s) + SERVICE_S
                if (left_s := done_s - time.monotonic()) > 0:
                    time.sleep(left_s)
                self._note(name, self._job(pid, uid), time.monotonic() - asked_s)
            failed, told = answer(operation, node, body, self._files)
            try:
                os.write(self._channel, ANSWER.pack(ANSWER.size + len(told), failed, unique) + told)
            except OSError:  # whoever asked was killed meanwhile, or nothing is mounted any more
                continue

    def _job(self, pid: int, uid: int) -> str:
        now_s, known = time.monotonic(), self._jobs.get(pid)
        if known is None or now_s - known[0] > _KNOWN_S:
            if len(self._jobs) >= _MOST_KNOWN:
                self._jobs.clear()
            known = self._jobs[pid] = now_s, job_of_process(pid, uid)
        return known[1]

    def _note(self, name: str, job: str, took_s: float) -> None:
        with self._lock:
            self._by_job[job, name] += 1
            self._count[name] += 1
            self._time_s[name] = self._time_s.get(name, 0.0) + took_s

    def page(self, path: str) -> str:
        """What an exporter says: /metrics, /nfsd or /client/JOB; "" for any other."""
        with self._lock:
            by_job, count, time_s = dict(self._by_job), dict(self._count), dict(self._time_s)
        if path == "/metrics":
            lines = _lines(by_job, count, time_s)
        elif path == "/nfsd":
            lines = _lines_of_nfsd(count)
        elif path.startswith("/client/"):
            job = path.removeprefix("/client/")
            lines = _lines_of_client({name: value for (of, name), value in by_job.items() if of == job})
        else:
            return ""
        return "\n".join([*lines, ""])


def _lines_of_nfsd(count: dict[str, int]) -> Iterator[str]:
    yield "# TYPE node_nfsd_requests_total counter"
    for name, value in sorted(count.items()):
        yield f'node_nfsd_requests_total{{method="{_METHODS.get(name, name)}",proto="3"}} {value}'
    yield "# TYPE node_nfsd_server_threads gauge"
    yield "node_nfsd_server_threads 8"


def _lines_of_client(count: dict[str, int]) -> Iterator[str]:
    about = 'export="nas1:/work",mountaddr="10.0.0.9",protocol="tcp"'
    yield "# TYPE node_mountstats_nfs_operations_requests_total counter"
    for name, value in sorted(count.items()):
        operation = _METHODS.get(name, name).upper()
        yield f'node_mountstats_nfs_operations_requests_total{{{about},operation="{operation}"}} {value}'


def _lines(by_job: dict[tuple[str, str], int], count: dict[str, int], time_s: dict[str, float]) -> Iterator[str]:
    about = f'component="mdt",target="{TARGET}"'
    yield "# TYPE lustre_job_stats_total counter"
    for (job, name), value in sorted(by_job.items()):
        yield f'lustre_job_stats_total{{{about},jobid="{job}",operation="{name}"}} {value}'
    yield "# TYPE lustre_stats_total counter"
    for name, value in sorted(count.items()):
        yield f'lustre_stats_total{{{about},operation="{name}"}} {value}'
    yield "# TYPE lustre_stats_time_total counter"
    for name, seconds in sorted(time_s.items()):
        yield f'lustre_stats_time_total{{{about},operation="{name}"}} {int(seconds * 1e6)}'


def serve_page(server: MetadataServer, port: int) -> ThreadingHTTPServer:
    """Serves its pages on a port of 127.0.0.1, in threads that end with the program."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = server.page(self.path).encode()
            self.send_response(200 if page else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, format: str, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    return http


def main() -> None:
    """Mounts, and serves until it is unmounted."""
    path, port = sys.argv[1], int(sys.argv[2])
    server = MetadataServer(mount(path, SOURCE))
    serve_page(server, port)
    print("ready", flush=True)
    server.serve()


if __name__ == "__main__":
    main()
