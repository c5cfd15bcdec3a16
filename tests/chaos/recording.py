"""What a program did to the files of a folder, as strace saw it, in the order in which it ended.

The operations are those that change what a disk holds: writes, truncations, names, and syncs. What
the program notes in its notebook is among them, so that it is known what had been acknowledged at
each moment. A call that is not modelled is refused, not passed over.
"""

import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SYNCS = ("fsync", "fdatasync")
NAMES = ("openat", "unlink", "unlinkat", "rename", "renameat", "renameat2", "link", "linkat")
UNMODELLED = (
    *("pwritev", "pwritev2", "writev", "truncate", "fallocate", "copy_file_range", "sendfile"),
    *("sync_file_range", "msync", "creat", "open"),
)
TRACED = (*SYNCS, *NAMES, *UNMODELLED, "write", "pwrite64", "ftruncate", "lseek")

_LINE = re.compile(r"(\d+)\s+(\w+)\((.*)\)\s+= (-?\d+)")
_AT = re.compile(r'(?:AT_FDCWD|\d+)<((?:\\x[0-9a-f]{2})*)>, "((?:\\x[0-9a-f]{2})*)"')
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_FILE = re.compile(r"^(\d+)<((?:\\x[0-9a-f]{2})*)>(\(deleted\))?")
_MADE = re.compile(r"= (\d+)<")


@dataclass(frozen=True)
class Operation:
    """One change, or one sync.

    ``began`` is how many operations had ended when it began: a sync only covers those.
    """

    kind: str
    """write, truncate, create, unlink, rename, link, sync, note."""
    path: str
    began: int
    offset: int = 0
    data: bytes = b""
    other: str = ""


def available() -> bool:
    """Say whether programs can be traced here."""
    if shutil.which("strace") is None:
        return False
    tried = subprocess.run(
        ["strace", "-f", "--seccomp-bpf", "-o", "/dev/null", "true"], capture_output=True
    )
    return tried.returncode == 0


def record(folder: Path, trace: Path, *arguments: str, seconds: float) -> list[Operation]:
    """Run ``tests.chaos.recorded`` under strace and give what it did to the folder's files."""
    program = [sys.executable, "-m", "tests.chaos.recorded", *arguments]
    tracer = ["strace", "-f", "--seccomp-bpf", "-y", "-xx", "-s", "4000000", "-e", "signal=none"]
    tracer += ["-e", f"trace={','.join(f'?{name}' for name in TRACED)}", "-o", str(trace)]
    done = subprocess.run(
        [*tracer, *program], cwd=ROOT, capture_output=True, text=True, timeout=seconds
    )
    if done.returncode != 0:
        raise RuntimeError(f"the recorded program failed:\n{done.stderr[-3000:]}")
    with trace.open(encoding="ascii", errors="replace") as lines:
        operations = [*_operations(lines, f"{folder}/")]
    trace.unlink()
    return operations


def _operations(lines: Iterator[str], folder: str) -> Iterator[Operation]:
    """Read the trace; lines of other processes come between a call's beginning and its end."""
    begun: dict[str, tuple[str, int]] = {}
    places: dict[int, int] = {}
    ended = 0
    inside = _hex(folder)
    for line in lines:
        began = ended
        pid = line.split(maxsplit=1)[0]
        if line.rstrip().endswith("<unfinished ...>"):
            begun[pid] = (line.rstrip().removesuffix("<unfinished ...>"), ended)
            continue
        if "resumed>" in line and pid in begun:
            first, began = begun.pop(pid)
            line = first + line.partition("resumed>")[2]
        if inside not in line and _hex(folder[:-1]) not in line:
            continue
        found = _LINE.match(line)
        if found is None or int(found[4]) < 0:
            continue
        for operation in _operation(found, line, folder, began, places):
            ended += 1
            yield operation


def _operation(
    found: re.Match[str], line: str, folder: str, began: int, places: dict[int, int]
) -> Iterator[Operation]:
    name, arguments, result = found[2], found[3], int(found[4])
    texts = [_text(text) for text in _TEXT.findall(arguments)]
    if name in NAMES:
        paths = [text.decode() for text in texts]
        if "at" in name:
            pairs = _AT.findall(arguments)
            paths = [posixpath.join(_text(at).decode(), _text(path).decode()) for at, path in pairs]
        yield from _naming(name, paths, line, folder, began, places)
        return
    file = _FILE.match(arguments)
    if file is None or file[3] is not None:
        return
    fd, path = int(file[1]), _text(file[2]).decode()
    if name in SYNCS:
        if _matters(path, folder) or path == folder[:-1]:
            yield Operation("sync", path, began)
        return
    if not _matters(path, folder):
        return
    if name == "pwrite64":
        offset = int(arguments.rpartition(",")[2])
        yield Operation("write", path, began, offset, texts[0][:result])
    elif name == "write":
        kind = "note" if path.endswith("/book") else "write"
        at = places.get(fd, 0)
        places[fd] = at + result
        yield Operation(kind, path, began, at, texts[0][:result])
    elif name == "lseek":
        places[fd] = result
    elif name == "ftruncate":
        yield Operation("truncate", path, began, int(arguments.rpartition(",")[2]))
    else:
        raise RuntimeError(f"a call that is not modelled: {line:.200}")


def _naming(
    name: str, paths: list[str], line: str, folder: str, began: int, places: dict[int, int]
) -> Iterator[Operation]:
    path, other = paths[0], paths[-1]
    if name == "openat":
        made = _MADE.search(line)
        if made is not None:
            places[int(made[1])] = 0
        if not _matters(path, folder):
            return
        if "O_APPEND" in line and not path.endswith("/book"):
            raise RuntimeError(f"appending is not modelled: {line:.200}")
        if "O_CREAT" in line:
            yield Operation("create", path, began)
        if "O_TRUNC" in line:
            yield Operation("truncate", path, began, 0)
    elif name.startswith("unlink"):
        if _matters(path, folder):
            yield Operation("unlink", path, began)
    elif _matters(path, folder) or _matters(other, folder):
        kind = "link" if name.startswith("link") else "rename"
        yield Operation(kind, path, began, other=other)


def _matters(path: str, folder: str) -> bool:
    """Leave out what SQLite rebuilds after a crash, whatever it holds: the index of the log."""
    return path.startswith(folder) and not path.endswith("-shm")


def _hex(text: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in text.encode())


def _text(escaped: str) -> bytes:
    return bytes.fromhex(escaped.replace("\\x", ""))
