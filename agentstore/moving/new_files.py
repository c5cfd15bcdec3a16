"""Files that are there whole, or not at all, and never take another one's place unasked.

A file is made in a folder of its own beside its target, which only this user can enter and which
says by its name what it is. When it is whole and on the disk it is linked under the target's name:
the system refuses that where there is something already, however late it came. Who is killed
leaves the folder behind; its lock, which the system releases, tells the next one that nobody works
there any more.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from agentstore.errors import (
    BackupError,
    BackupUnderWay,
    DatabaseError,
    DatabaseFull,
    DatabaseReadOnly,
    DatabaseUnreachable,
    TargetExists,
)

_FOLDER = ".{}.agentstore-partial"
_LOCK, _FILE = "lock", "file"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class NewFile:
    """A file in the making.

    Attributes:
        path: Where it is while it is made: it is there, empty, for this user alone. What a program
            makes beside it, with a longer name, is taken away with it.
    """

    def __init__(
        self, target: Path, *, beside: Collection[Path] = (), replace: bool = False
    ) -> None:
        """Take the target, and what must not be there either.

        Args:
            target: Its name.
            beside: What must not be there either.
            replace: Whether to take the place of a file. Of nothing else: what a link leads to
                is never touched.
        """
        self._target = target
        self._beside = beside
        self._replace = replace
        self._folder = target.with_name(_FOLDER.format(target.name))
        self.path = self._folder / _FILE

    def publish(self) -> int:
        """Put it under its target's name; it is on the disk when this returns.

        Returns:
            How many bytes it has.

        Raises:
            TargetExists: Meanwhile there is something.
        """
        with translating(self._target):
            _flush(self.path)
            self._require_room(*self._beside)
            if self._replaces_a_file():
                self.path.replace(self._target)
            else:
                _link(self.path, self._target)
            _flush(self._target.parent)
            return self._target.stat().st_size

    @contextmanager
    def in_the_making(self) -> Iterator[NewFile]:
        """Make the folder and the empty file, and take them away in the end.

        Raises:
            TargetExists: There is something already.
            BackupUnderWay: Another process makes the same file.
            BackupError: This is no POSIX system.
        """
        try:
            targets = [] if self._replaces_a_file() else [self._target]
            self._require_room(*targets, *self._beside)
        except TargetExists:
            self._sweep()
            raise
        with translating(self._target):
            lock = self._claim()
        try:
            with translating(self._target):
                self._clear()
                os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            yield self
        finally:
            self._leave(lock)

    def _replaces_a_file(self) -> bool:
        """Say whether there is a file whose place this one is to take."""
        try:
            return self._replace and stat.S_ISREG(self._target.lstat().st_mode)
        except OSError:
            return False

    def _require_room(self, *paths: Path) -> None:
        for path in paths:
            if os.path.lexists(path):
                raise TargetExists(str(path))

    def _sweep(self) -> None:
        """Take away what was left by one who was killed after the file had got its name."""
        if os.path.lexists(self._folder):
            with suppress(OSError, BackupError):
                self._leave(self._claim())

    def _leave(self, lock: int) -> None:
        """Take the folder away, with all that is in it."""
        with suppress(OSError):
            self._clear()
            (self._folder / _LOCK).unlink()
            self._folder.rmdir()
        os.close(lock)

    def _claim(self) -> int:
        """Make the folder, or take it over from one who was killed."""
        try:
            import fcntl  # which is nowhere else
        except ImportError:
            raise BackupError(
                "Files can be written and restored only on POSIX systems, which have the file "
                "locks that this needs. Use Linux or macOS; an export can also go to standard "
                "output."
            ) from None
        name = self._folder / _LOCK
        while True:
            with suppress(FileExistsError):
                self._folder.mkdir(0o700)
            self._require_own()
            try:
                lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            except FileNotFoundError:
                if not self._target.parent.is_dir():
                    raise
                continue  # its owner has just taken it away
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(lock), name.stat()):
                    return lock
            except BlockingIOError:
                os.close(lock)
                raise BackupUnderWay(str(self._target)) from None
            except FileNotFoundError:
                pass
            except OSError:  # no locks here, as on some file systems of a network
                os.close(lock)
                raise
            os.close(lock)

    def _require_own(self) -> None:
        """Refuse a folder that somebody else could reach into."""
        with suppress(FileNotFoundError):
            found = self._folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                raise TargetExists(str(self._folder))

    def _clear(self) -> None:
        for left in self._folder.glob(f"{_FILE}*"):
            left.unlink()


def _flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _link(path: Path, target: Path) -> None:
    try:
        os.link(path, target, follow_symlinks=False)
    except FileExistsError:
        raise TargetExists(str(target)) from None
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # A file system without links. An empty file holds the name until ours replaces it.
        try:
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            raise TargetExists(str(target)) from None
        path.replace(target)


@contextmanager
def translating(path: Path) -> Iterator[None]:
    """Make the system's errors ours."""
    try:
        yield
    except OSError as error:
        raise _translated(error, path) from error


def _translated(error: OSError, path: Path) -> DatabaseError:
    words = f"{path}: {error.strerror or type(error).__name__}."
    if error.errno in _FULL:
        return DatabaseFull(f"{words} Nothing was kept. Free some space, or choose another disk.")
    if error.errno in _REFUSED:
        return DatabaseReadOnly(f"{words} Check the permissions of the file and of its folder.")
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return DatabaseUnreachable(f"{words} Check the path, and that its folder exists.")
    return DatabaseError(f"{words} Check the disk, then run the command again.")
