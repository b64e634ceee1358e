"""What a fault is, and how what came of it is judged."""

import json
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from bayesemble.core.errors import BayesembleError

RIGHT, REFUSED, HARMLESS = "right", "refused", "harmless"
SILENT, LOSS, TRACEBACK = "SILENT WRONG", "DATA LOSS", "TRACEBACK"
LEFTOVER, HANG, UNCLEAR = "LEFTOVER", "HANG", "UNCLEAR"
BAD = (SILENT, LOSS, TRACEBACK, LEFTOVER, HANG, UNCLEAR)
OUTCOMES = (RIGHT, REFUSED, HARMLESS, *BAD)
"""UNCLEAR is a refusal of what is right, that names no file, or that says what is not so; HANG did not end in time."""

Verdict = tuple[str, str]
"""An outcome, and words about it."""


@dataclass(frozen=True)
class Fault:
    """One fault, what came of it, and all that is needed to repeat it."""

    kind: str
    seed: int
    number: int
    done: str
    """What was done."""
    outcome: str
    words: str

    @property
    def bad(self) -> bool:
        """Whether the library broke a promise."""
        return self.outcome in BAD

    def to_json(self) -> str:
        """One line of a file of results."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Attempt:
    """A fault that is about to be done."""

    done: str
    act: Callable[[], Verdict]
    """Does it and says what came of it. An error of the library is a refusal, any other a traceback."""
    seconds: float = 30
    may_refuse: bool = True
    """Whether a refusal is an answer; where nothing is wrong with what is asked for, it is none."""


class BrokenPromiseError(Exception):
    """Something bad was seen, and where."""

    def __init__(self, outcome: str, words: str) -> None:
        super().__init__(words)
        self.outcome = outcome


class TookTooLongError(BaseException):
    """A fault did not end in time; no handler of ordinary errors may catch it."""


def check(holds: bool, outcome: str, words: str) -> None:
    """Go on only if a promise was kept."""
    if not holds:
        raise BrokenPromiseError(outcome, words)


def judge(attempt: Attempt) -> Verdict:
    """Do it, and say what came of it."""
    try:
        with time_limit(attempt.seconds):
            return attempt.act()
    except BrokenPromiseError as error:
        return error.outcome, str(error)
    except BayesembleError as error:
        return (REFUSED if attempt.may_refuse else UNCLEAR), str(error)
    except TookTooLongError:
        return HANG, f"it did not end within {attempt.seconds:g} seconds"
    except Exception as error:
        return TRACEBACK, f"{type(error).__name__}: {error}"


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """End a block that takes too long; timers of somebody else come back afterwards."""

    def stop(*_: object) -> None:
        raise TookTooLongError

    handler = signal.signal(signal.SIGALRM, stop)
    before = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *before)
        signal.signal(signal.SIGALRM, handler)


@contextmanager
def heard() -> Iterator[list[str]]:
    """The warnings of a block, in words."""
    said: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield said
        finally:
            said += [str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)]


def in_child(act: Callable[[], Verdict], seconds: float = 30) -> Verdict:
    """Do something that may end its process in a process of its own."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        verdict = judge(Attempt("", act, seconds))
        os.write(writing, json.dumps([verdict[0], verdict[1][:2000]]).encode())
        os._exit(0)
    os.close(writing)
    try:
        with os.fdopen(reading, "rb") as pipe:
            told = pipe.read()
    except TookTooLongError:
        os.kill(pid, signal.SIGKILL)
        raise
    finally:
        _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return TRACEBACK, f"the process died of {signal.Signals(os.WTERMSIG(status)).name}"
    outcome, words = json.loads(told)
    return outcome, words


def named(error: BayesembleError, *names: str) -> Verdict:
    """A refusal, which has to name one of the files that are to blame."""
    words = str(error)
    if any(name in words for name in names):
        return REFUSED, words
    return UNCLEAR, f"{words!r} names none of {', '.join(names)}"


def contents(folder: Path) -> dict[str, bytes | str]:
    """Every file below a folder with its bytes; of what is no plain file, what it is."""
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"link to {os.readlink(path)}"
        elif path.is_file():
            found[name] = path.read_bytes()
        else:
            found[name] = "folder" if path.is_dir() else "no plain file"
    return found


def check_kept(before: dict[str, bytes | str], folder: Path) -> None:
    """All that was in a folder is there still, as it was."""
    now = contents(folder)
    gone = [name for name in before if name not in now]
    check(not gone, LOSS, f"gone: {', '.join(gone[:3])}")
    changed = [name for name in before if now[name] != before[name]]
    check(not changed, LOSS, f"changed: {', '.join(changed[:3])}")


def check_no_leftovers(before: dict[str, bytes | str], folder: Path) -> None:
    """Nothing is in a folder that was not there before."""
    new = [name for name in contents(folder) if name not in before]
    check(not new, LEFTOVER, f"left behind: {', '.join(new[:3])}")


def temporaries(folder: Path) -> list[str]:
    """Files and folders with hidden names, as those have that are not whole yet."""
    return [str(path.relative_to(folder)) for path in folder.rglob(".*")]
