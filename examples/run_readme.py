"""Runs the commands of a README's ```console blocks, in a copy of its folder, and compares.

A command begins with "$ "; what follows it is expected, line by line, in this order, among the lines
that it prints; "…" stands for anything. One that ends with " &" goes on: it has come up when the lines
that are expected of it have come. They are ended when all is done.

The ports of 127.0.0.1 that README and folder name are others here, which nobody uses.
"""

import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading

PATIENCE = 120


def free_ports(text):
    """A free port for each one of the text; all are held until all are known to differ."""
    named = sorted(set(re.findall(r"127\.0\.0\.1:(\d+)", text)))
    held = [socket.create_server(("127.0.0.1", 0)) for _ in named]
    ports = {name: str(s.getsockname()[1]) for name, s in zip(named, held)}
    for s in held:
        s.close()
    return ports


def moved(text, ports):
    return re.sub(r"(127\.0\.0\.1:)(\d+)", lambda m: m[1] + ports.get(m[2], m[2]), text)


def commands(text):
    for block in re.findall(r"^```console\n(.*?)^```", text, re.M | re.S):
        command, expected = None, []
        for line in block.splitlines():
            if command is not None and command.endswith("\\"):
                command = command[:-1] + line.strip()
            elif line.startswith("$ "):
                if command is not None:
                    yield command, expected
                command, expected = line[2:], []
            elif command is not None:
                expected.append(line)
        if command is not None:
            yield command, expected


def follow(process, command, expected):
    """Reads the output until every expected line has come; what is missing is an error."""
    ended = threading.Timer(PATIENCE, process.kill)
    ended.start()
    wanted, seen = list(expected), []
    while wanted:
        line = process.stdout.readline()
        if not line:
            sys.exit(f"$ {command}\nwanted: {wanted[0]}\nfound:\n{''.join(seen)}")
        seen.append(line)
        pattern = ".*".join(map(re.escape, wanted[0].strip().split("…")))
        if re.fullmatch(pattern, line.strip()):
            wanted.pop(0)
    ended.cancel()


def drain(process):
    for _ in process.stdout:
        pass


def main(readme):
    readme = pathlib.Path(readme).resolve()
    running = []
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder) / "work"
        shutil.copytree(readme.parent, work)
        ports = free_ports(readme.read_text())
        for file in filter(pathlib.Path.is_file, work.rglob("*.toml")):
            file.write_text(moved(file.read_text(), ports))
        try:
            for command, expected in commands(moved(readme.read_text(), ports)):
                print(f"$ {command}", flush=True)
                goes_on = command.endswith(" &")
                process = subprocess.Popen(
                    ["sh", "-c", "exec " + command[:-2] if goes_on else command],
                    cwd=work,
                    text=True,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                )
                if goes_on:
                    running.append(process)
                follow(process, command, expected)
                threading.Thread(target=drain, args=[process], daemon=True).start()
                if not goes_on and process.wait(PATIENCE) != 0:
                    sys.exit(f"$ {command}\nexit status {process.returncode}")
        finally:
            for process in running:
                process.kill()
                process.wait()


main(sys.argv[1])
