"""A training whose rank 0 does something else between two steps, as trainings do; UNEVEN says what, PAUSE_S how long."""

import gc
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


def server(bytes_per_second):
    """Takes what comes at this rate; 0: accepts, and reads nothing."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            taken, _ = listener.accept()
            threading.Thread(target=read, args=(taken,), daemon=True).start()

    def read(taken):
        while bytes_per_second and taken.recv(max(1, int(bytes_per_second / 20))):
            time.sleep(0.05)
        time.sleep(3600)

    threading.Thread(target=serve, daemon=True).start()
    return listener.getsockname()


def upload(seconds, model):
    with socket.create_connection(server(200_000)) as connection:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            connection.sendall(b"x" * 20_000)


def blocked_upload(seconds, model):
    with socket.create_connection(server(0)) as connection:
        connection.settimeout(seconds)
        try:
            while True:
                connection.sendall(b"x" * 1_000_000)
        except TimeoutError:
            pass


def blocked_log(seconds, model):
    with socket.create_connection(server(0)) as connection:
        connection.settimeout(seconds)
        try:
            connection.recv(1)
        except TimeoutError:
            pass


def save(seconds, model):
    until = time.monotonic() + seconds
    with tempfile.TemporaryFile() as file:
        while time.monotonic() < until:
            torch.save(model.state_dict(), file)
            file.seek(0)
            time.sleep(0.05)


def blocked_save(seconds, model):
    read, write = os.pipe()

    def drain():
        time.sleep(seconds)
        os.close(read)

    threading.Thread(target=drain, daemon=True).start()
    try:
        while True:
            os.write(write, b"x" * 65536)
    except BrokenPipeError:
        os.close(write)


def log(seconds, model):
    until = time.monotonic() + seconds
    address = server(40_000)
    while time.monotonic() < until:
        with socket.create_connection(address) as connection:
            connection.sendall(b"{" + b"x" * 9000 + b"}")
        time.sleep(0.2)


def sample(seconds, model):
    until, tokens = time.monotonic() + seconds, torch.zeros(1, 64)
    with torch.no_grad():
        while time.monotonic() < until:
            tokens = torch.tanh(model.module(tokens).repeat(1, 64) + tokens)


def evaluate(seconds, model):
    until, data = time.monotonic() + seconds, DataLoader(TensorDataset(torch.randn(4096, 64)), batch_size=64)
    model.eval()
    with torch.no_grad():
        while time.monotonic() < until:
            for (batch,) in data:
                model.module(batch)
                time.sleep(0.002)
    model.train()


def compress(seconds, model):
    until = time.monotonic() + seconds
    packer, data = zlib.compressobj(9), os.urandom(1 << 20)
    with tempfile.TemporaryFile() as file:
        while time.monotonic() < until:
            file.write(packer.compress(data))
            file.seek(0)


def compile(seconds, model):
    code = f"import time; end = time.monotonic() + {seconds}\nwhile time.monotonic() < end: sum(range(10000))"
    subprocess.run([sys.executable, "-c", code], check=True)


def collect(seconds, model):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        kept = [[] for _ in range(200_000)]
        for each in kept:
            each.append(kept)
        del kept
        gc.collect()


def train(kind, pause_s, before_s):
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = DataLoader(TensorDataset(torch.randn(2048, 64)), batch_size=64)
    does = globals().get(kind)
    step = 0
    for epoch in range(6):
        if kind == "epochs" and epoch:
            time.sleep(2.5)
        for (batch,) in data:
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.08 * (1.5 if kind == "straggler" and rank == 0 else 1.0))
            step += 1
            if does and rank == 0 and step == 70 and before_s:
                does(before_s, model)
            if does and rank == 0 and step == 130:
                does(pause_s, model)
    if kind in ("tail", "barrier") and rank == 0:
        sample(pause_s, model)
    dist.barrier()
    if kind == "barrier":
        dist.barrier()


dist.init_process_group("gloo")
kind = os.environ["UNEVEN"]
if kind == "neighbours" and dist.get_rank() == 0:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: sum(range(10000))"]) for _ in range(2)]
    threading.Timer(20.0, lambda: [each.kill() for each in busy]).start()
train(kind, float(os.environ["PAUSE_S"]), float(os.environ["BEFORE_S"]))
dist.destroy_process_group()
